// The one JVM in which every case of the Java client runs. It reads commands as JSON, one a line, from standard input and
// answers each with one line on standard output:
//   {"list": true}                                          -> {"cases": [NAME, ...]}
//   {"tool": CLASS, "words": [WORD, ...]}                   -> {"code": NUMBER, "out": TEXT, "err": TEXT}
//   {"case": NAME, "bootstrap": HOST:PORT, "prefix": TEXT}   -> {"ok": true, "result": ...} or {"ok": false, "error": ...}
// A case is a public static method of one of the classes below that takes a Node. What it returns is compared between two
// brokers, so it holds nothing that differs from run to run; names carry the prefix, which the caller cuts off again.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;

public final class Runner {
    private static final Class<?>[] HOLDERS = {
        ProduceCases.class, ConsumeCases.class, GroupCases.class, AdminCases.class, ScaleCases.class,
        CrowdCases.class};

    private static Map<String, Method> cases() {
        Map<String, Method> found = new TreeMap<>();
        for (Class<?> holder : HOLDERS) {
            String group = holder.getSimpleName().replace("Cases", "").toLowerCase();
            for (Method method : holder.getDeclaredMethods()) {
                boolean open = Modifier.isPublic(method.getModifiers()) && Modifier.isStatic(method.getModifiers());
                if (open && method.getParameterCount() == 1 && method.getParameterTypes()[0] == Node.class) {
                    found.put(group + "/" + method.getName(), method);
                }
            }
        }
        return found;
    }

    private static Map<String, Object> run(Method method, Node node) {
        Map<String, Object> answer = new LinkedHashMap<>();
        try (node) {
            answer.put("result", method.invoke(null, node));
            answer.put("ok", true);
        } catch (Throwable thrown) {
            Throwable cause = thrown instanceof InvocationTargetException && thrown.getCause() != null ? thrown.getCause() : thrown;
            StringWriter trace = new StringWriter();
            cause.printStackTrace(new PrintWriter(trace));
            answer.clear();
            answer.put("ok", false);
            answer.put("error", trace.toString());
        }
        return answer;
    }

    public static void main(String[] arguments) throws Exception {
        // Only answers go to standard output: whatever a library prints is moved aside.
        PrintStream out = System.out;
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        Map<String, Method> cases = cases();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode command = json.readTree(line);
            Map<String, Object> answer = new LinkedHashMap<>();
            if (command.has("list")) {
                answer.put("cases", cases.keySet());
            } else if (command.has("tool")) {
                answer = ToolRun.of(command.get("tool").asText(), json.convertValue(command.get("words"), String[].class));
            } else {
                Method method = cases.get(command.get("case").asText());
                answer = method == null
                    ? Map.of("ok", false, "error", "no such case")
                    : run(method, new Node(command.get("bootstrap").asText(), command.get("prefix").asText()));
            }
            out.println(json.writeValueAsString(answer));
            out.flush();
        }
        System.exit(0);
    }
}
