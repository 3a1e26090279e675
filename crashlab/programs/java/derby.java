import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

/**
 * Apache Derby: transactions of two records each, and a checkpoint after every third.
 *
 * <p>Promise: "Derby ensures that all committed transactions are durable, even if the system fails"
 * (developer's guide, "Storage and recovery").
 *
 * <p>A check takes half a second, to start Java: give it --seconds 300.
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class Derby {
    static void run(String verb, String variant) throws Exception {
        System.setProperty("derby.stream.error.field", "java.lang.System.err");
        String create = verb.equals("setup") ? ";create=true" : "";
        Connection connection = DriverManager.getConnection("jdbc:derby:db" + create);
        switch (verb) {
            case "setup" -> {
                Records.createTable(connection, "TABLE");
                connection.close();
                try {
                    DriverManager.getConnection("jdbc:derby:;shutdown=true");
                } catch (SQLException ended) {
                    // This is how Derby says that it has ended.
                }
            }
            case "work" -> Records.makeChanges(connection, 3, "CALL SYSCS_UTIL.SYSCS_CHECKPOINT_DATABASE()");
            default -> {
                String checkTable = "VALUES SYSCS_UTIL.SYSCS_CHECK_TABLE('APP', 'RECORDS')";
                try (var rows = connection.createStatement().executeQuery(checkTable)) {
                    rows.next();
                }
                Records.check(Records.read(connection));
            }
        }
    }
}
