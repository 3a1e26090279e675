import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.CheckIndex;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.MultiBits;
import org.apache.lucene.index.Term;
import org.apache.lucene.store.FSDirectory;

/**
 * Lucene: two documents are added or replaced, and committed, six times.
 *
 * <p>Promise: commit() "syncs all referenced index files, such that a reader will see the changes and the
 * index updates will survive an OS or machine crash or power loss"
 * (https://lucene.apache.org/core/9_12_3/core/org/apache/lucene/index/IndexWriter.html#commit()).
 *
 * <p>A check takes half a second, to start Java: give it --seconds 300.
 *
 * <p>Install: apt install openjdk-17-jdk-headless maven
 */
final class Lucene {
    static void run(String verb, String variant) throws Exception {
        FSDirectory directory = FSDirectory.open(Path.of("index"));
        if (verb.equals("check")) {
            try (CheckIndex checker = new CheckIndex(directory)) {
                if (!checker.checkIndex().clean) {
                    throw new IllegalStateException("CheckIndex finds damage");
                }
            }
            Records.check(read(directory));
            return;
        }
        IndexWriter writer = new IndexWriter(directory, new IndexWriterConfig(new NoAnalyzer()));
        if (verb.equals("setup")) {
            writer.close();
            return;
        }
        Records.makeChanges((number, records) -> {
            for (Map.Entry<String, String> record : records.entrySet()) {
                Document document = new Document();
                document.add(new StringField("name", record.getKey(), Field.Store.YES));
                document.add(new StringField("content", record.getValue(), Field.Store.YES));
                writer.updateDocument(new Term("name", record.getKey()), document);
            }
            writer.commit();
            if (number == 4) {
                writer.forceMerge(1);
                writer.commit();
            }
        });
    }

    private static Map<String, String> read(FSDirectory directory) throws Exception {
        Map<String, String> found = new TreeMap<>();
        DirectoryReader reader = DirectoryReader.open(directory);
        var alive = MultiBits.getLiveDocs(reader);
        for (int number = 0; number < reader.maxDoc(); number++) {
            if (alive == null || alive.get(number)) {
                Document document = reader.storedFields().document(number);
                found.put(document.get("name"), document.get("content"));
            }
        }
        return found;
    }

    /** The fields are not split into words. */
    private static final class NoAnalyzer extends Analyzer {
        @Override
        protected TokenStreamComponents createComponents(String field) {
            throw new UnsupportedOperationException();
        }
    }
}
