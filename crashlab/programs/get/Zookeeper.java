import java.io.File;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/** Test of ZooKeeper: `Zookeeper setup|work|check`, see zookeeper.sh. */
public class Zookeeper {
    private static final int CHANGES = 6;

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "setup" -> setup();
            case "work" -> work();
            case "check" -> check();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        Runtime.getRuntime().halt(0); // without closing the server
    }

    private static ZooKeeperServer server() throws Exception {
        File folder = new File("data");
        return new ZooKeeperServer(folder, folder, 2000);
    }

    /** A client of a server that runs in this process. */
    private static ZooKeeper start() throws Exception {
        NIOServerCnxnFactory connections = new NIOServerCnxnFactory();
        connections.configure(new InetSocketAddress("127.0.0.1", 0), 10);
        connections.startup(server());
        return new ZooKeeper("127.0.0.1:" + connections.getLocalPort(), 60000, event -> { });
    }

    private static void create(ZooKeeper client, int number) throws Exception {
        client.create("/node" + number, content(number), ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
    }

    private static void setup() throws Exception {
        create(start(), 0);
    }

    private static void work() throws Exception {
        ZooKeeper client = start();
        for (int number = 1; number <= CHANGES; number++) {
            create(client, number);
            System.out.println("created " + number);
        }
    }

    /** Reads the files as a server does when it starts. */
    private static void check() throws Exception {
        Set<Integer> created = new HashSet<>(Set.of(0));
        for (String line : Files.readAllLines(Path.of(System.getenv("CRASHLAB_ACKED")))) {
            created.add(Integer.parseInt(line.substring("created ".length())));
        }
        ZooKeeperServer server = server();
        try {
            server.startdata();
        } catch (Exception | Error error) {
            demand(false, "the server does not start: " + error);
        }
        DataTree tree = server.getZKDatabase().getDataTree();
        boolean ended = false;
        for (int number = 0; number <= CHANGES; number++) {
            boolean there = tree.getNode("/node" + number) != null;
            demand(there || !created.contains(number), "node " + number + " was created and is lost");
            demand(!there || !ended, "node " + number + " is there without the one before it");
            demand(!there || Arrays.equals(tree.getData("/node" + number, new Stat(), null), content(number)),
                    "node " + number + " is damaged");
            ended = !there;
        }
    }

    private static void demand(boolean holds, String fault) {
        if (!holds) {
            System.out.println(fault);
            Runtime.getRuntime().halt(1);
        }
    }

    private static byte[] content(int number) {
        return ("value-" + number + "-").repeat(100).getBytes();
    }
}
