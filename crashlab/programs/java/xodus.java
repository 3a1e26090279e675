import java.util.Map;
import java.util.TreeMap;
import jetbrains.exodus.ByteIterable;
import jetbrains.exodus.bindings.StringBinding;
import jetbrains.exodus.env.Environment;
import jetbrains.exodus.env.EnvironmentConfig;
import jetbrains.exodus.env.Environments;
import jetbrains.exodus.env.Store;
import jetbrains.exodus.env.StoreConfig;

/**
 * Xodus: transactions of two records each, with exodus.log.durableWrite.
 *
 * <p>Promise: transactions are ACID
 * (https://github.com/JetBrains/xodus/wiki/Transactions); durableWrite syncs the log at each commit.
 *
 * <p>A check takes half a second, to start Java: give it --seconds 300.
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class Xodus {
    static void run(String verb, String variant) throws Exception {
        EnvironmentConfig config = new EnvironmentConfig().setLogDurableWrite(true).setGcEnabled(false);
        config.setLogFileSize(64).setMemoryUsage(8 << 20).setManagementEnabled(false);
        Environment environment = Environments.newInstance("db", config);
        Store store = environment.computeInTransaction(
                transaction -> environment.openStore("records", StoreConfig.WITHOUT_DUPLICATES, transaction));
        switch (verb) {
            case "setup" -> environment.close();
            case "work" -> Records.makeChanges((number, records) -> environment.executeInTransaction(transaction -> {
                for (Map.Entry<String, String> record : records.entrySet()) {
                    ByteIterable key = StringBinding.stringToEntry(record.getKey());
                    store.put(transaction, key, StringBinding.stringToEntry(record.getValue()));
                }
            }));
            default -> {
                Map<String, String> found = new TreeMap<>();
                environment.executeInReadonlyTransaction(transaction -> {
                    try (var cursor = store.openCursor(transaction)) {
                        while (cursor.getNext()) {
                            String value = StringBinding.entryToString(cursor.getValue());
                            found.put(StringBinding.entryToString(cursor.getKey()), value);
                        }
                    }
                });
                Records.check(found);
            }
        }
    }
}
