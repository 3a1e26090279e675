import java.sql.Connection;
import java.sql.DriverManager;

/**
 * H2: transactions of two records each.
 *
 * <p>Variants: default, and sync, with CHECKPOINT SYNC after each transaction.
 *
 * <p>Promise: transactions are atomic, and the database can be opened after a power failure. H2 says that it
 * "does not guarantee that all committed transactions survive a power failure"
 * (https://h2database.com/html/advanced.html#durability_problems), so the variant default does not demand it.
 * CHECKPOINT SYNC "flushes the data to disk and forces all system buffers be written to the underlying
 * device" (https://h2database.com/html/commands.html#checkpoint_sync).
 *
 * <p>A check takes half a second, to start Java: give it --seconds 300.
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class H2 {
    static void run(String verb, String variant) throws Exception {
        Connection connection = DriverManager.getConnection("jdbc:h2:./test;DB_CLOSE_ON_EXIT=FALSE");
        switch (verb) {
            case "setup" -> {
                Records.createTable(connection, "TABLE");
                connection.close();
            }
            case "work" -> {
                if (variant.equals("sync")) {
                    Records.makeChanges(connection, 1, "CHECKPOINT SYNC");
                }
                Records.makeChanges(connection, 3, "CHECKPOINT");
            }
            default -> {
                if (variant.equals("sync")) {
                    Records.check(Records.read(connection));
                } else {
                    Records.checkWhole(Records.read(connection));
                }
            }
        }
    }
}
