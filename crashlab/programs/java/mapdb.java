import java.util.Map;
import java.util.TreeMap;
import org.mapdb.DB;
import org.mapdb.DBMaker;
import org.mapdb.Serializer;

/**
 * MapDB: transactions of two records each, with transactionEnable().
 *
 * <p>Promise: transactionEnable() is a write-ahead log, for protection from crashes (https://mapdb.org/book/). So what
 * was committed is there.
 *
 * <p>A check takes half a second, to start Java: give it --seconds 300.
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class Mapdb {
    static void run(String verb, String variant) throws Exception {
        DB store = DBMaker.fileDB("test.mapdb").transactionEnable().make();
        Map<String, String> map = store.treeMap("records", Serializer.STRING, Serializer.STRING).createOrOpen();
        switch (verb) {
            case "setup" -> {
                store.commit();
                store.close();
            }
            case "work" -> Records.makeChanges((number, records) -> {
                map.putAll(records);
                store.commit();
            });
            default -> Records.check(new TreeMap<>(map));
        }
    }
}
