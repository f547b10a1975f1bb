// One run of a command-line tool inside this JVM: its words, what it printed, and the code it would have left with.

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.utils.internals.Exit;

public final class ToolRun {
    /** Thrown where a tool would end the process. */
    private static final class Left extends Error {
        private static final long serialVersionUID = 1L;
        final int code;

        Left(int code) {
            this.code = code;
        }
    }

    private ToolRun() {}

    static Map<String, Object> of(String tool, String[] words) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream formerOut = System.out;
        PrintStream formerErr = System.err;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        // A tool may catch what is thrown at its first exit and leave once more: the first code is the one it wanted.
        int[] first = {-1};
        Exit.Procedure leave = (code, message) -> {
            if (first[0] < 0) {
                first[0] = code;
            }
            throw new Left(code);
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        try {
            main(tool, words);
        } catch (Left left) {
            first[0] = first[0] < 0 ? left.code : first[0];
        } catch (Throwable thrown) {
            // Uncaught, it would have ended the process with 1.
            System.err.println(thrown);
            first[0] = 1;
        } finally {
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
            System.out.flush();
            System.err.flush();
            System.setOut(formerOut);
            System.setErr(formerErr);
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("code", Math.max(first[0], 0));
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        answer.put("err", err.toString(StandardCharsets.UTF_8));
        return answer;
    }

    private static void main(String tool, String[] words) throws Throwable {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) words);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause();
        }
    }
}
