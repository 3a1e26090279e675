import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/** Test of HSQLDB: `Hsqldb setup|work|check`, see hsqldb.sh. */
public class Hsqldb {
    private static final int CHANGES = 6;
    private static final int CHECKPOINT_AFTER = 3;

    public static void main(String[] arguments) throws Exception {
        System.setProperty("hsqldb.reconfig_logging", "false");
        switch (arguments[0]) {
            case "setup" -> setup();
            case "work" -> work();
            case "check" -> check();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        Runtime.getRuntime().halt(0); // without closing the database
    }

    /** Without its lock file, since a lock that is a few seconds old makes a new process wait. */
    private static Connection open() throws SQLException {
        return DriverManager.getConnection("jdbc:hsqldb:file:db/test;hsqldb.lock_file=false", "SA", "");
    }

    private static void setup() throws SQLException {
        try (Statement statement = open().createStatement()) {
            statement.execute("SET FILES WRITE DELAY FALSE");
            statement.execute("CREATE CACHED TABLE records (number INT PRIMARY KEY, content VARCHAR(400))");
            statement.execute("CREATE CACHED TABLE counts (number INT)");
            statement.execute("INSERT INTO counts VALUES 0");
            statement.execute("SHUTDOWN");
        }
    }

    private static void work() throws SQLException {
        Connection connection = open();
        connection.setAutoCommit(false);
        for (int number = 1; number <= CHANGES; number++) {
            System.out.println("begins " + number);
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO records VALUES (?, ?)");
                    Statement update = connection.createStatement()) {
                insert.setInt(1, number);
                insert.setString(2, content(number));
                insert.executeUpdate();
                update.executeUpdate("UPDATE counts SET number = " + number);
            }
            connection.commit();
            System.out.println("stored " + number);
            if (number == CHECKPOINT_AFTER) {
                connection.createStatement().execute("CHECKPOINT");
            }
        }
        connection.createStatement().execute("SHUTDOWN");
    }

    private static void check() throws Exception {
        int stored = 0;
        for (String line : Files.readAllLines(Path.of(System.getenv("CRASHLAB_ACKED")))) {
            if (line.startsWith("stored ")) {
                stored = Integer.parseInt(line.substring("stored ".length()));
            }
        }
        try (Statement statement = open().createStatement()) {
            ResultSet count = statement.executeQuery("SELECT number FROM counts");
            demand(count.next(), "the count is gone");
            int changes = count.getInt(1);
            demand(changes >= stored, "change " + stored + " was stored, and only " + changes + " are there");
            ResultSet found = statement.executeQuery("SELECT number, content FROM records ORDER BY number");
            for (int number = 1; number <= changes; number++) {
                demand(found.next() && found.getInt(1) == number, "record " + number + " is missing");
                demand(content(number).equals(found.getString(2)), "record " + number + " is wrong");
            }
            demand(!found.next(), "there are too many records");
        } catch (SQLException error) {
            demand(false, "SQL: " + error.getMessage());
        }
    }

    private static void demand(boolean holds, String fault) {
        if (!holds) {
            System.out.println(fault);
            Runtime.getRuntime().halt(1);
        }
    }

    private static String content(int number) {
        return ("value-" + number + "-").repeat(50);
    }
}
