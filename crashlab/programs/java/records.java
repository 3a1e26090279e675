import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Map;
import java.util.TreeMap;

/**
 * What the tests share: the changes, and what must be left of them.
 *
 * <p>Change n writes a record with number n, and n as the record "count", in one transaction. So "count"
 * says which records must be there.
 */
final class Records {
    private static final int CHANGES = 6;
    private static final String COUNT = "count";

    /** Writes the records of change n. */
    interface Writer {
        void write(int number, Map<String, String> records) throws Exception;
    }

    /** Calls the writer for each change, and says that it is stored. Then it ends the program as it is. */
    static void makeChanges(Writer writer) throws Exception {
        for (int number = 1; number <= CHANGES; number++) {
            writer.write(number, Map.of(key(number), value(number), COUNT, String.valueOf(number)));
            System.out.println("stored " + number);
        }
        Runtime.getRuntime().halt(0);
    }

    /** Each change is there as a whole or not at all, in order, and none is lost that was stored. */
    static void check(Map<String, String> found) throws IOException {
        int count = Integer.parseInt(found.getOrDefault(COUNT, "0"));
        if (count < stored()) {
            throw new IllegalStateException("change " + stored() + " was stored, and only " + count + " are there");
        }
        checkWhole(found);
    }

    /** Each change is there as a whole or not at all, in order. */
    static void checkWhole(Map<String, String> found) {
        int count = Integer.parseInt(found.getOrDefault(COUNT, "0"));
        Map<String, String> expected = new TreeMap<>();
        for (int number = 1; number <= count; number++) {
            expected.put(key(number), value(number));
        }
        if (count > 0) {
            expected.put(COUNT, String.valueOf(count));
        }
        if (!expected.equals(found)) {
            throw new IllegalStateException(count + " changes are there, but the records are " + found.keySet());
        }
    }

    static void createTable(Connection connection, String kind) throws SQLException {
        execute(connection, "CREATE " + kind + " records (name VARCHAR(20) PRIMARY KEY, content VARCHAR(1000))");
    }

    /** Makes the changes in the table, one transaction each; after so many follows the statement. */
    static void makeChanges(Connection connection, int transactions, String statement) throws Exception {
        connection.setAutoCommit(false);
        makeChanges((number, records) -> {
            for (Map.Entry<String, String> record : records.entrySet()) {
                execute(connection, "DELETE FROM records WHERE name = ?", record.getKey());
                execute(connection, "INSERT INTO records VALUES (?, ?)", record.getKey(), record.getValue());
            }
            connection.commit();
            if (number % transactions == 0) {
                execute(connection, statement);
            }
        });
    }

    /** The records in the table. */
    static Map<String, String> read(Connection connection) throws SQLException {
        Map<String, String> found = new TreeMap<>();
        try (var rows = connection.createStatement().executeQuery("SELECT name, content FROM records")) {
            while (rows.next()) {
                found.put(rows.getString(1), rows.getString(2));
            }
        }
        return found;
    }

    static void execute(Connection connection, String sql, String... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                statement.setString(i + 1, values[i]);
            }
            statement.execute();
        }
    }

    private static String key(int number) {
        return String.format("key%04d", number);
    }

    private static String value(int number) {
        return ("value-" + number + "-").repeat(50);
    }

    private static int stored() throws IOException {
        int last = 0;
        for (String line : Files.readAllLines(Path.of(System.getenv("CRASHLAB_ACKED")))) {
            if (line.startsWith("stored ")) {
                last = Integer.parseInt(line.substring(7));
            }
        }
        return last;
    }
}
