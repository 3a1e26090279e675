import java.util.Map;

/** Tests of stores written in Java: NAME setup|work|check|version [VARIANT]. */
final class Main {
    /** Does what the verb says, in the working folder. */
    interface Program {
        void run(String verb, String variant) throws Exception;
    }

    private static final Map<String, Program> PROGRAMS = Map.of(
            "derby", Derby::run,
            "h2", H2::run,
            "hsqldb", Hsqldb::run,
            "lucene", Lucene::run,
            "mapdb", Mapdb::run,
            "xodus", Xodus::run);
    private static final Map<String, String> LIBRARIES = Map.of("lucene", "lucene-core", "xodus", "xodus-environment");

    public static void main(String[] words) {
        Program program = words.length < 2 ? null : PROGRAMS.get(words[0]);
        if (program == null) {
            System.err.println("Usage: NAME setup|work|check|version [VARIANT]");
            System.exit(2);
        }
        if (words[1].equals("version")) {
            System.out.println(version(LIBRARIES.getOrDefault(words[0], words[0])));
            return;
        }
        try {
            program.run(words[1], words.length > 2 ? words[2] : "");
        } catch (Throwable error) {
            error.printStackTrace(System.out);
            System.out.flush();
            Runtime.getRuntime().halt(1);
        }
        // Without closing what is open.
        Runtime.getRuntime().halt(0);
    }

    /** The version in the name of the library's file. */
    private static String version(String library) {
        for (String file : System.getProperty("java.class.path").split(":")) {
            String name = file.substring(file.lastIndexOf('/') + 1);
            if (name.startsWith(library + "-")) {
                return name.substring(library.length() + 1, name.length() - ".jar".length());
            }
        }
        return "unknown";
    }
}
