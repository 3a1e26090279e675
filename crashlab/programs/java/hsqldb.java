import java.sql.Connection;
import java.sql.DriverManager;

/**
 * HSQLDB: transactions of two records each in a CACHED table, with WRITE DELAY FALSE, and a checkpoint after
 * every third.
 *
 * <p>Promise: FALSE "indicates there is no delay and at each commit a file synch operation is performed"
 * (https://hsqldb.org/doc/2.0/guide/, SET FILES WRITE DELAY).
 *
 * <p>A check takes half a second, to start Java: give it --seconds 300.
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class Hsqldb {
    static void run(String verb, String variant) throws Exception {
        System.setProperty("hsqldb.reconfig_logging", "false");
        String url = "jdbc:hsqldb:file:db/test;hsqldb.lock_file=false";
        Connection connection = DriverManager.getConnection(url, "SA", "");
        switch (verb) {
            case "setup" -> {
                Records.execute(connection, "SET FILES WRITE DELAY FALSE");
                Records.createTable(connection, "CACHED TABLE");
                Records.execute(connection, "SHUTDOWN");
            }
            case "work" -> Records.makeChanges(connection, 3, "CHECKPOINT");
            default -> Records.check(Records.read(connection));
        }
    }
}
