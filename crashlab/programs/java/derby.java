import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

/**
 * Apache Derby: transactions of two records each, and a checkpoint after every third.
 *
 * <p>Promise: "Derby ensures that all committed transactions are durable, even if the system fails"
 * (developer's guide, "Storage and recovery").
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class Derby {
    static void run(String verb, String variant) throws Exception {
        System.setProperty("derby.stream.error.field", "java.lang.System.err");
        Connection connection = DriverManager.getConnection("jdbc:derby:db" + (verb.equals("setup") ? ";create=true" : ""));
        switch (verb) {
            case "setup" -> {
                Records.execute(connection, "CREATE TABLE records (name VARCHAR(20) PRIMARY KEY, content VARCHAR(1000))");
                connection.close();
                try {
                    DriverManager.getConnection("jdbc:derby:;shutdown=true");
                } catch (SQLException ended) {
                    // This is how Derby says that it has ended.
                }
            }
            case "work" -> Records.makeChanges(connection, "CALL SYSCS_UTIL.SYSCS_CHECKPOINT_DATABASE()");
            default -> {
                try (var rows = connection.createStatement().executeQuery("VALUES SYSCS_UTIL.SYSCS_CHECK_TABLE('APP', 'RECORDS')")) {
                    rows.next();
                }
                Records.check(Records.read(connection));
            }
        }
    }
}
