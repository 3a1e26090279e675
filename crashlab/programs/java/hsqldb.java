import java.sql.Connection;
import java.sql.DriverManager;

/**
 * HSQLDB: transactions of two records each in a CACHED table, with WRITE DELAY FALSE, and a checkpoint after
 * every third.
 *
 * <p>Promise: FALSE "indicates there is no delay and at each commit a file synch operation is performed"
 * (https://hsqldb.org/doc/2.0/guide/, SET FILES WRITE DELAY).
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class Hsqldb {
    static void run(String verb, String variant) throws Exception {
        System.setProperty("hsqldb.reconfig_logging", "false");
        Connection connection = DriverManager.getConnection("jdbc:hsqldb:file:db/test;hsqldb.lock_file=false", "SA", "");
        switch (verb) {
            case "setup" -> {
                Records.execute(connection, "SET FILES WRITE DELAY FALSE");
                Records.execute(connection, "CREATE CACHED TABLE records (name VARCHAR(20) PRIMARY KEY, content VARCHAR(1000))");
                Records.execute(connection, "SHUTDOWN");
            }
            case "work" -> Records.makeChanges(connection, "CHECKPOINT");
            default -> Records.check(Records.read(connection));
        }
    }
}
