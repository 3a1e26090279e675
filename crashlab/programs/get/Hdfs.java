import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.hdfs.server.protocol.NamenodeProtocols;

/** Test of the NameNode of HDFS: `Hdfs setup|work|check`, see hdfs.sh. */
public class Hdfs {
    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "setup" -> setup();
            case "work" -> work();
            case "check" -> check();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        Runtime.getRuntime().halt(0); // without closing the server
    }

    private static Configuration configuration() {
        Configuration configuration = new Configuration();
        configuration.set("fs.defaultFS", "hdfs://127.0.0.1:0");
        configuration.set("dfs.namenode.http-address", "127.0.0.1:0");
        configuration.set("dfs.namenode.name.dir", Path.of("name").toAbsolutePath().toUri().toString());
        configuration.set("hadoop.tmp.dir", System.getProperty("java.io.tmpdir"));
        return configuration;
    }

    private static NamenodeProtocols start() throws Exception {
        return new NameNode(configuration()).getRpcServer();
    }

    private static void make(NamenodeProtocols server, String directory) throws Exception {
        server.mkdirs(directory, FsPermission.getDirDefault(), true);
    }

    private static void setup() throws Exception {
        NameNode.format(configuration());
        make(start(), "/made0");
    }

    @SuppressWarnings("deprecation")
    private static void work() throws Exception {
        NamenodeProtocols server = start();
        for (int number = 1; number <= 4; number++) {
            make(server, "/made" + number);
            System.out.println("made " + number);
            demand(server.rename("/made" + number, "/renamed" + number), "not renamed");
            System.out.println("renamed " + number);
            if (number == 2) {
                server.rollEditLog();
            }
        }
    }

    private static void check() throws Exception {
        NamenodeProtocols server = null;
        try {
            server = start();
        } catch (Throwable error) {
            demand(false, "the NameNode does not start: " + error);
        }
        List<String> acknowledged = new ArrayList<>(List.of("made 0"));
        acknowledged.addAll(Files.readAllLines(Path.of(System.getenv("CRASHLAB_ACKED"))));
        for (String line : acknowledged) {
            String directory = "/" + line.replace(" ", "");
            String renamed = directory.replace("made", "renamed");
            demand(server.getFileInfo(directory) != null || server.getFileInfo(renamed) != null,
                    directory + " is lost");
        }
    }

    private static void demand(boolean holds, String fault) {
        if (!holds) {
            System.out.println(fault);
            Runtime.getRuntime().halt(1);
        }
    }
}
