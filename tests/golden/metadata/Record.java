// Drives Apache Kafka 4.4's own QuorumController on a virtual clock and an instant, in-memory quorum with random requests,
// and writes what went in and what came out: requests, responses and metadata records as bytes.
// javac -cp 'KAFKA_LIBS/*' -d OUT Record.java && java -cp 'OUT:KAFKA_LIBS/*' Record FILE SEED STEPS racks|flat
// racks.txt.gz is seed 15, flat.txt.gz seed 17, both of 2500 steps, through gzip -9n.
import java.io.*;
import java.nio.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import kafka.server.*;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.metadata.*;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.requests.*;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.controller.*;
import org.apache.kafka.image.*;
import org.apache.kafka.metadata.*;
import org.apache.kafka.metadata.bootstrap.BootstrapMetadata;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.raft.*;
import org.apache.kafka.server.common.*;
import org.apache.kafka.server.fault.FaultHandler;

public class Record {
    static final int NODE = 1;
    static final String CLUSTER = "4L6g3nShT-eMCtK--X86sw";
    static final long START = 1_700_000_000_000L;

    static class Clock implements org.apache.kafka.common.utils.Time {
        volatile long ns = 1_000_000_000_000L;
        public long milliseconds() { return START + ns / 1_000_000; }
        public long nanoseconds() { return ns; }
        public void sleep(long ms) { ns += ms * 1_000_000; }
    }

    /** Commits every append at once. */
    static class Quorum implements RaftClient<ApiMessageAndVersion> {
        RaftClient.Listener<ApiMessageAndVersion> listener;
        long end = 0;
        List<List<ApiMessageAndVersion>> prepared = new ArrayList<>();
        List<ApiMessageAndVersion> log = new ArrayList<>();
        MetadataImage image = MetadataImage.EMPTY;
        public synchronized void register(RaftClient.Listener<ApiMessageAndVersion> l) { listener = l; }
        public void unregister(RaftClient.Listener<ApiMessageAndVersion> l) { }
        public OptionalLong highWatermark() { return OptionalLong.of(end); }
        public LeaderAndEpoch leaderAndEpoch() { return new LeaderAndEpoch(OptionalInt.of(NODE), 1); }
        public OptionalInt nodeId() { return OptionalInt.of(NODE); }
        public Optional<Node> voterNode(int id, ListenerName name) { return Optional.empty(); }
        public synchronized long prepareAppend(int epoch, List<ApiMessageAndVersion> records) {
            prepared.add(new ArrayList<>(records));
            long last = end - 1;
            for (List<ApiMessageAndVersion> p : prepared) last += p.size();
            return last;
        }
        public synchronized void schedulePreparedAppend() {
            MetadataDelta delta = new MetadataDelta.Builder().setImage(image).build();
            List<Batch<ApiMessageAndVersion>> batches = new ArrayList<>();
            for (List<ApiMessageAndVersion> p : prepared) {
                if (p.isEmpty()) continue;
                batches.add(Batch.data(end, 1, START, 100, p));
                end += p.size();
                log.addAll(p);
                for (ApiMessageAndVersion m : p) if (!(m.message() instanceof BeginTransactionRecord || m.message() instanceof EndTransactionRecord || m.message() instanceof NoOpRecord)) delta.replay(m.message());
            }
            prepared.clear();
            if (batches.isEmpty()) return;
            image = delta.apply(new MetadataProvenance(end - 1, 1, START, true));
            Iterator<Batch<ApiMessageAndVersion>> it = batches.iterator();
            long base = batches.get(0).baseOffset(), last = end - 1;
            listener.handleCommit(new BatchReader<>() {
                public long baseOffset() { return base; }
                public OptionalLong lastOffset() { return OptionalLong.of(last); }
                public void close() { }
                public boolean hasNext() { return it.hasNext(); }
                public Batch<ApiMessageAndVersion> next() { return it.next(); }
            });
        }
        public CompletionStage<Void> shutdown(int t) { return CompletableFuture.completedFuture(null); }
        public void resign(int epoch) { throw new RuntimeException("resigned"); }
        public Optional<org.apache.kafka.snapshot.SnapshotWriter<ApiMessageAndVersion>> createSnapshot(OffsetAndEpoch id, long t) { return Optional.empty(); }
        public Optional<OffsetAndEpoch> latestSnapshotId() { return Optional.empty(); }
        public synchronized long logEndOffset() { return end; }
        public KRaftVersion kraftVersion() { return KRaftVersion.KRAFT_VERSION_1; }
        public void upgradeKRaftVersion(int epoch, KRaftVersion v, boolean validateOnly) { }
        public void close() { }
    }

    static final Clock clock = new Clock();
    static final Quorum quorum = new Quorum();
    static QuorumController controller;
    static PrintWriter out;
    static Random random;
    static boolean racks;
    static int printed = 0;

    static String hex(ByteBuffer b) { b = b.duplicate(); byte[] a = new byte[b.remaining()]; b.get(a); return HexFormat.of().formatHex(a); }
    static String hex(Message m, short v) { return hex(MessageUtil.toByteBufferAccessor(m, v).buffer()); }

    static void records() {
        synchronized (quorum) {
            for (; printed < quorum.log.size(); printed++) {
                ApiMessageAndVersion m = quorum.log.get(printed);
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer b = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(m, cache));
                MetadataRecordSerde.INSTANCE.write(m, cache, new ByteBufferAccessor(b));
                b.flip();
                out.println("M " + hex(b));
            }
        }
    }

    static Throwable unwrap(Throwable e) { return e instanceof CompletionException || e instanceof ExecutionException ? unwrap(e.getCause()) : e; }

    interface Call { CompletableFuture<? extends ApiMessage> run(ControllerRequestContext context) throws Exception; }

    static void request(ApiKeys key, int v, ApiMessage data) throws Exception {
        short version = (short) v;
        ByteBufferAccessor bytes = MessageUtil.toByteBufferAccessor(data, version);
        String body = hex(bytes.buffer());
        AbstractRequest request = AbstractRequest.parseRequest(key, version, new ByteBufferAccessor(bytes.buffer().duplicate())).request;
        ControllerRequestContext context = new ControllerRequestContext(
            new RequestHeaderData().setRequestApiKey(key.id).setRequestApiVersion(version), KafkaPrincipal.ANONYMOUS, OptionalLong.empty());
        ApiMessage response;
        try {
            response = dispatch(key, context, request.data()).get(20, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            throw e;
        } catch (Throwable e) {
            response = request.getErrorResponse(0, unwrap(e)).data();
        }
        // Kafka's controller trips over itself at times (a topic that goes while it has no ISR stays in two indexes);
        // what it answers from there on is nothing to follow.
        if (response instanceof CreatePartitionsResponseData) {
            // Nor to follow: it refuses a topic and yet appends those of its partitions that came before the refusal.
            boolean refused = ((CreatePartitionsResponseData) response).results().stream().anyMatch(x -> x.errorCode() != 0);
            faulted |= refused && quorum.log.size() > printed;
        }
        if (faulted) { out.close(); System.exit(0); }
        out.println("A " + key.id + " " + version + " " + body);
        out.println("R " + hex(response, version));
        records();
    }

    @SuppressWarnings("unchecked")
    static CompletableFuture<? extends ApiMessage> dispatch(ApiKeys key, ControllerRequestContext c, ApiMessage d) throws Exception {
        switch (key) {
            case CREATE_TOPICS: {
                CreateTopicsRequestData r = (CreateTopicsRequestData) d;
                Set<String> names = r.topics().stream().map(t -> t.name()).collect(Collectors.toSet());
                return controller.createTopics(c, r, names, true);
            }
            case DELETE_TOPICS: {
                DeleteTopicsRequestData r = (DeleteTopicsRequestData) d;
                DeleteTopicsResponseData s = new DeleteTopicsResponseData();
                Map<Uuid, String> ids = new LinkedHashMap<>();
                if (c.requestHeader().requestApiVersion() < 6) {
                    for (String name : r.topicNames()) byName(name, ids, s);
                } else {
                    for (DeleteTopicsRequestData.DeleteTopicState t : r.topics()) {
                        if (t.name() != null) { byName(t.name(), ids, s); continue; }
                        TopicImage image = quorum.image.topics().getTopic(t.topicId());
                        if (image == null) s.responses().add(result(null, t.topicId(), new ApiError(Errors.UNKNOWN_TOPIC_ID)));
                        else ids.put(t.topicId(), image.name());
                    }
                }
                return controller.deleteTopics(c, ids.keySet()).thenApply(results -> {
                    results.forEach((id, e) -> s.responses().add(result(ids.get(id), id, e)));
                    return s;
                });
            }
            case CREATE_PARTITIONS: {
                CreatePartitionsRequestData r = (CreatePartitionsRequestData) d;
                return controller.createPartitions(c, new ArrayList<>(r.topics()), r.validateOnly())
                    .thenApply(l -> new CreatePartitionsResponseData().setResults(l));
            }
            case ALTER_PARTITION: return controller.alterPartition(c, (AlterPartitionRequestData) d);
            case ELECT_LEADERS: return controller.electLeaders(c, (ElectLeadersRequestData) d);
            case ALTER_PARTITION_REASSIGNMENTS: return controller.alterPartitionReassignments(c, (AlterPartitionReassignmentsRequestData) d);
            case LIST_PARTITION_REASSIGNMENTS: return controller.listPartitionReassignments(c, (ListPartitionReassignmentsRequestData) d);
            case ALLOCATE_PRODUCER_IDS: return controller.allocateProducerIds(c, (AllocateProducerIdsRequestData) d);
            case UPDATE_FEATURES: return controller.updateFeatures(c, (UpdateFeaturesRequestData) d);
            case ASSIGN_REPLICAS_TO_DIRS: return controller.assignReplicasToDirs(c, (AssignReplicasToDirsRequestData) d);
            case BROKER_REGISTRATION: return controller.registerBroker(c, (BrokerRegistrationRequestData) d)
                .thenApply(r -> new BrokerRegistrationResponseData().setBrokerEpoch(r.epoch()));
            case BROKER_HEARTBEAT: return controller.processBrokerHeartbeat(c, (BrokerHeartbeatRequestData) d)
                .thenApply(r -> new BrokerHeartbeatResponseData().setIsCaughtUp(r.isCaughtUp()).setIsFenced(r.isFenced()).setShouldShutDown(r.shouldShutDown()));
            case UNREGISTER_BROKER: return controller.unregisterBroker(c, ((UnregisterBrokerRequestData) d).brokerId())
                .thenApply(r -> new UnregisterBrokerResponseData());
            case CONTROLLER_REGISTRATION: return controller.registerController(c, (ControllerRegistrationRequestData) d)
                .thenApply(r -> new ControllerRegistrationResponseData());
            case UNREGISTER_CONTROLLER: return controller.unregisterController(c, ((UnregisterControllerRequestData) d).controllerId())
                .thenApply(r -> new UnregisterControllerResponseData());
            case INCREMENTAL_ALTER_CONFIGS: {
                IncrementalAlterConfigsRequestData r = (IncrementalAlterConfigsRequestData) d;
                Map<ConfigResource, Map<String, Map.Entry<OpType, String>>> changes = new LinkedHashMap<>();
                r.resources().forEach(x -> {
                    Map<String, Map.Entry<OpType, String>> m = new LinkedHashMap<>();
                    x.configs().forEach(y -> m.put(y.name(), new AbstractMap.SimpleEntry<>(OpType.forId(y.configOperation()), y.value())));
                    changes.put(new ConfigResource(ConfigResource.Type.forId(x.resourceType()), x.resourceName()), m);
                });
                return controller.incrementalAlterConfigs(c, changes, r.validateOnly(), true).thenApply(results -> {
                    IncrementalAlterConfigsResponseData s = new IncrementalAlterConfigsResponseData();
                    results.forEach((k, e) -> s.responses().add(new IncrementalAlterConfigsResponseData.AlterConfigsResourceResponse()
                        .setResourceName(k.name()).setResourceType(k.type().id()).setErrorCode(e.error().code()).setErrorMessage(e.message())));
                    return s;
                });
            }
            case ALTER_CONFIGS: {
                AlterConfigsRequestData r = (AlterConfigsRequestData) d;
                Map<ConfigResource, Map<String, String>> changes = new LinkedHashMap<>();
                r.resources().forEach(x -> {
                    Map<String, String> m = new LinkedHashMap<>();
                    x.configs().forEach(y -> m.put(y.name(), y.value()));
                    changes.put(new ConfigResource(ConfigResource.Type.forId(x.resourceType()), x.resourceName()), m);
                });
                return controller.legacyAlterConfigs(c, changes, r.validateOnly(), true).thenApply(results -> {
                    AlterConfigsResponseData s = new AlterConfigsResponseData();
                    results.forEach((k, e) -> s.responses().add(new AlterConfigsResponseData.AlterConfigsResourceResponse()
                        .setResourceName(k.name()).setResourceType(k.type().id()).setErrorCode(e.error().code()).setErrorMessage(e.message())));
                    return s;
                });
            }
            default: throw new IllegalArgumentException(key.toString());
        }
    }

    static void byName(String name, Map<Uuid, String> ids, DeleteTopicsResponseData s) {
        TopicImage image = quorum.image.topics().getTopic(name);
        if (image == null) s.responses().add(result(name, Uuid.ZERO_UUID, new ApiError(Errors.UNKNOWN_TOPIC_OR_PARTITION)));
        else ids.put(image.id(), name);
    }
    static DeleteTopicsResponseData.DeletableTopicResult result(String name, Uuid id, ApiError e) {
        return new DeleteTopicsResponseData.DeletableTopicResult().setName(name).setTopicId(id).setErrorCode(e.error().code()).setErrorMessage(e.message());
    }

    /** Lets time pass. At most one broker's session may end in it: which of several goes first is up to a hash table. */
    static void tick(long ms) throws Exception {
        for (int b = 0; b < BROKERS; b++) if (b != victim) keepAlive(b);
        advance(ms);
        // A timer that found something to do comes back after 10 ms.
        for (int i = 0; i < 16; i++) advance(10);
    }

    static int victim = 0;
    static volatile boolean faulted = false;

    static void keepAlive(int broker) throws Exception {
        BrokerRegistration now = quorum.image.cluster().broker(broker);
        if (now == null) return;
        request(ApiKeys.BROKER_HEARTBEAT, 2, new BrokerHeartbeatRequestData().setBrokerId(broker).setBrokerEpoch(now.epoch())
            .setCurrentMetadataOffset(quorum.end - 1).setWantFence(now.fenced()));
    }

    static void advance(long ms) throws Exception {
        clock.ns += ms * 1_000_000;
        // The queue looks at its timers between any two events.
        for (int i = 0; i < 3; i++) controller.finalizedFeatures(new ControllerRequestContext(new RequestHeaderData(), KafkaPrincipal.ANONYMOUS, OptionalLong.empty())).get();
        out.println("T " + ms);
        records();
    }

    static int pick(int n) { return random.nextInt(n); }
    static boolean chance(int percent) { return pick(100) < percent; }
    static Uuid id() { Uuid u; do { u = new Uuid(random.nextLong(), random.nextLong()); } while (u.toString().startsWith("-")); return u; }

    // The brokers as the generator plays them.
    static final int BROKERS = 6;
    static Map<Integer, Uuid> incarnations = new HashMap<>();
    static Map<Integer, List<Uuid>> dirs = new HashMap<>();

    static void register(int broker, boolean fresh) throws Exception {
        if (fresh || !incarnations.containsKey(broker)) incarnations.put(broker, id());
        if (!dirs.containsKey(broker) || chance(5)) {
            List<Uuid> l = new ArrayList<>();
            for (int i = 0; i <= broker % 3; i++) l.add(id());
            dirs.put(broker, l);
        }
        BrokerRegistration now = quorum.image.cluster().broker(broker);
        int version = chance(80) ? 4 : pick(5);
        BrokerRegistrationRequestData.FeatureCollection features = new BrokerRegistrationRequestData.FeatureCollection();
        QuorumFeatures.defaultSupportedFeatureMap(false).forEach((n, r) -> {
            if (version >= 4 || r.min() > 0)
            features.add(new BrokerRegistrationRequestData.Feature().setName(n).setMinSupportedVersion(r.min()).setMaxSupportedVersion(r.max()));
        });
        int odd = pick(30);
        if (odd == 0) features.removeIf(f -> f.name().equals("metadata.version"));
        if (odd == 1) features.find("metadata.version").setMaxSupportedVersion((short) 20);
        if (odd == 2) features.removeIf(f -> f.name().equals("eligible.leader.replicas.version"));
        BrokerRegistrationRequestData.ListenerCollection listeners = new BrokerRegistrationRequestData.ListenerCollection();
        listeners.add(new BrokerRegistrationRequestData.Listener().setName("PLAINTEXT").setHost("host" + broker).setPort(9092).setSecurityProtocol((short) 0));
        if (chance(30)) listeners.add(new BrokerRegistrationRequestData.Listener().setName("OTHER").setHost("other" + broker).setPort(9093).setSecurityProtocol((short) 3));
        List<Uuid> d = new ArrayList<>(dirs.get(broker));
        if (odd == 3) d = List.of();
        if (odd == 4) d.add(new Uuid(0, 50));
        if (odd == 5) d.add(d.get(0));
        if (odd == 6 && dirs.containsKey((broker + 1) % BROKERS)) d.add(dirs.get((broker + 1) % BROKERS).get(0));
        request(ApiKeys.BROKER_REGISTRATION, version, new BrokerRegistrationRequestData().setBrokerId(broker)
            .setClusterId(odd == 7 ? "another" : CLUSTER).setIncarnationId(incarnations.get(broker)).setListeners(listeners).setFeatures(features)
            .setRack(racks ? "rack" + broker : null).setIsMigratingZkBroker(version >= 1 && odd == 8).setLogDirs(d)
            .setPreviousBrokerEpoch(now == null || chance(40) ? -1 : now.epoch()));
    }

    static void heartbeat(int broker, boolean plain) throws Exception {
        BrokerRegistration now = quorum.image.cluster().broker(broker);
        long epoch = now == null ? 5 : now.epoch();
        int version = chance(70) ? 2 : pick(3);
        BrokerHeartbeatRequestData r = new BrokerHeartbeatRequestData().setBrokerId(broker)
            .setBrokerEpoch(!plain && chance(4) ? epoch + 1 : epoch)
            .setCurrentMetadataOffset(!plain && chance(10) ? Math.max(0, quorum.end - pick(40)) : quorum.end - 1)
            .setWantFence(!plain && chance(8)).setWantShutDown(!plain && chance(8));
        if (version >= 1 && !plain && chance(4) && dirs.containsKey(broker)) r.setOfflineLogDirs(List.of(dirs.get(broker).get(pick(dirs.get(broker).size()))));
        if (version >= 2) r.setCordonedLogDirs(!plain && chance(5) && dirs.containsKey(broker) ? List.of(dirs.get(broker).get(0)) : chance(50) ? List.of() : null);
        request(ApiKeys.BROKER_HEARTBEAT, version, r);
    }

    static List<String> names() {
        List<String> l = new ArrayList<>();
        quorum.image.topics().topicsByName().forEach((n, t) -> l.add(n));
        Collections.sort(l);
        return l;
    }
    static String topic() {
        List<String> l = names();
        return l.isEmpty() || chance(4) ? "missing" : l.get(pick(l.size()));
    }
    static final String[] ODD = {"", ".", "..", "a b", "x".repeat(250), "é"};
    static final String[][] CONFIGS = {{"retention.ms", "1000"}, {"cleanup.policy", "compact"}, {"min.insync.replicas", "2"}, {"segment.bytes", "2097152"},
        {"retention.ms", "abc"}, {"no.such", "1"}, {"unclean.leader.election.enable", "true"}, {"min.insync.replicas", "3"}, {"compression.type", "brotli"}, {"max.message.bytes", "-1"}};

    static List<Integer> replicas() {
        List<Integer> l = new ArrayList<>();
        int n = 1 + pick(3);
        while (l.size() < n) { int b = pick(BROKERS); if (!l.contains(b) || chance(3)) l.add(b); }
        if (chance(2)) l.clear();
        if (chance(2)) l.add(99);
        return l;
    }

    static void createTopics() throws Exception {
        CreateTopicsRequestData r = new CreateTopicsRequestData().setValidateOnly(chance(10));
        int n = 1 + pick(3);
        Set<String> used = new HashSet<>();
        for (int i = 0; i < n; i++) {
            String name = chance(6) ? ODD[pick(ODD.length)] : chance(12) ? "t_" + pick(4) + (chance(50) ? ".x" : "_x") : chance(8) ? topic() : "topic" + pick(400);
            if (!used.add(name)) continue;
            CreateTopicsRequestData.CreatableTopic t = new CreateTopicsRequestData.CreatableTopic().setName(name);
            if (chance(25)) {
                t.setNumPartitions(chance(95) ? -1 : 2).setReplicationFactor((short) (chance(95) ? -1 : 1));
                int parts = 1 + pick(3), rf = 1 + pick(3);
                for (int p = 0; p < parts; p++) {
                    List<Integer> l = replicas();
                    if (chance(90)) { l = new ArrayList<>(); for (int k = 0; k < rf; k++) l.add((p + k) % BROKERS); }
                    t.assignments().add(new CreateTopicsRequestData.CreatableReplicaAssignment().setPartitionIndex(chance(95) ? p : p + 1).setBrokerIds(l));
                }
            } else {
                t.setNumPartitions(chance(10) ? -1 : chance(5) ? -pick(3) : 1 + pick(6)).setReplicationFactor((short) (chance(10) ? -1 : chance(5) ? -pick(3) : 1 + pick(4)));
            }
            if (chance(40)) for (int k = 0; k <= pick(3); k++) {
                String[] kv = CONFIGS[pick(chance(70) ? 4 : CONFIGS.length)];
                if (t.configs().find(kv[0]) == null) t.configs().add(new CreateTopicsRequestData.CreatableTopicConfig().setName(kv[0]).setValue(chance(2) ? null : kv[1]));
            }
            r.topics().add(t);
        }
        request(ApiKeys.CREATE_TOPICS, chance(60) ? 7 : 2 + pick(6), r);
    }

    static void deleteTopics() throws Exception {
        int version = 1 + pick(6);
        DeleteTopicsRequestData r = new DeleteTopicsRequestData();
        Set<String> chosen = new LinkedHashSet<>();
        for (int i = 0; i <= pick(2); i++) chosen.add(topic());
        for (String name : chosen) {
            TopicImage image = quorum.image.topics().getTopic(name);
            if (version < 6) r.topicNames().add(name);
            else if (image != null && chance(50)) r.topics().add(new DeleteTopicsRequestData.DeleteTopicState().setTopicId(image.id()));
            else if (chance(5)) r.topics().add(new DeleteTopicsRequestData.DeleteTopicState().setTopicId(id()));
            else r.topics().add(new DeleteTopicsRequestData.DeleteTopicState().setName(name));
        }
        request(ApiKeys.DELETE_TOPICS, version, r);
    }

    static void createPartitions() throws Exception {
        CreatePartitionsRequestData r = new CreatePartitionsRequestData().setValidateOnly(chance(10));
        String name = topic();
        TopicImage image = quorum.image.topics().getTopic(name);
        int have = image == null ? 1 : image.partitions().size();
        // The replication factor is that of whichever partition a hash table yields first.
        if (image != null && image.partitions().values().stream().map(x -> x.replicas.length).distinct().count() > 1) return;
        CreatePartitionsRequestData.CreatePartitionsTopic t = new CreatePartitionsRequestData.CreatePartitionsTopic().setName(name).setCount(have + pick(5) - 1).setAssignments(null);
        if (chance(30)) {
            List<CreatePartitionsRequestData.CreatePartitionsAssignment> l = new ArrayList<>();
            int rf = image == null ? 1 : image.partitions().get(0).replicas.length;
            for (int i = 0; i < pick(3); i++) {
                List<Integer> b = new ArrayList<>();
                for (int k = 0; k < rf; k++) b.add((i + k) % BROKERS);
                l.add(new CreatePartitionsRequestData.CreatePartitionsAssignment().setBrokerIds(chance(90) ? b : replicas()));
            }
            t.setAssignments(l);
        }
        r.topics().add(t);
        request(ApiKeys.CREATE_PARTITIONS, pick(4), r);
    }

    static void alterPartition() throws Exception {
        TopicImage image = quorum.image.topics().getTopic(topic());
        if (image == null) return;
        int index = pick(image.partitions().size());
        PartitionRegistration p = image.partitions().get(index);
        int version = chance(70) ? 3 : 2;
        int broker = p.leader < 0 || chance(3) ? pick(BROKERS) : p.leader;
        BrokerRegistration now = quorum.image.cluster().broker(broker);
        AlterPartitionRequestData.PartitionData d = new AlterPartitionRequestData.PartitionData().setPartitionIndex(chance(98) ? index : 77)
            .setLeaderEpoch(p.leaderEpoch + (chance(94) ? 0 : pick(3) - 1)).setPartitionEpoch(p.partitionEpoch + (chance(94) ? 0 : pick(3) - 1))
            .setLeaderRecoveryState(chance(96) ? (byte) 0 : (byte) 1);
        Set<Integer> isr = new LinkedHashSet<>();
        for (int b : p.replicas) if (b == broker ? chance(98) : chance(60)) isr.add(b);
        if (chance(2)) isr.add(5);
        if (version < 3) d.setNewIsr(new ArrayList<>(isr));
        else for (int b : isr) {
            BrokerRegistration reg = quorum.image.cluster().broker(b);
            d.newIsrWithEpochs().add(new AlterPartitionRequestData.BrokerState().setBrokerId(b).setBrokerEpoch(reg == null || chance(20) ? -1 : chance(98) ? reg.epoch() : 3));
        }
        request(ApiKeys.ALTER_PARTITION, version, new AlterPartitionRequestData().setBrokerId(broker)
            .setBrokerEpoch(now == null ? 1 : chance(97) ? now.epoch() : 1)
            .setTopics(List.of(new AlterPartitionRequestData.TopicData().setTopicId(chance(98) ? image.id() : id()).setPartitions(List.of(d)))));
    }

    static void electLeaders() throws Exception {
        int version = pick(3);
        ElectLeadersRequestData r = new ElectLeadersRequestData().setElectionType(version >= 1 ? (byte) pick(chance(97) ? 2 : 4) : 0);
        if (chance(20)) r.setTopicPartitions(null);
        else {
            ElectLeadersRequestData.TopicPartitionsCollection l = new ElectLeadersRequestData.TopicPartitionsCollection();
            l.add(new ElectLeadersRequestData.TopicPartitions().setTopic(topic()).setPartitions(List.of(pick(3), 3 + pick(3))));
            r.setTopicPartitions(l);
        }
        request(ApiKeys.ELECT_LEADERS, version, r);
    }

    static void reassign() throws Exception {
        String name = topic();
        TopicImage image = quorum.image.topics().getTopic(name);
        int index = image == null ? 0 : pick(image.partitions().size() + 1);
        int version = pick(2);
        AlterPartitionReassignmentsRequestData r = new AlterPartitionReassignmentsRequestData();
        if (version >= 1) r.setAllowReplicationFactorChange(chance(70));
        r.topics().add(new AlterPartitionReassignmentsRequestData.ReassignableTopic().setName(name).setPartitions(List.of(
            new AlterPartitionReassignmentsRequestData.ReassignablePartition().setPartitionIndex(index).setReplicas(chance(25) ? null : replicas()))));
        request(ApiKeys.ALTER_PARTITION_REASSIGNMENTS, version, r);
    }

    static void listReassignments() throws Exception {
        ListPartitionReassignmentsRequestData r = new ListPartitionReassignmentsRequestData();
        r.setTopics(chance(60) ? null : List.of(new ListPartitionReassignmentsRequestData.ListPartitionReassignmentsTopics().setName(topic()).setPartitionIndexes(List.of(0, 1, 2))));
        request(ApiKeys.LIST_PARTITION_REASSIGNMENTS, 0, r);
    }

    static Object[] resource() {
        switch (pick(12)) {
            case 0: return new Object[] {(byte) 4, ""};
            case 1: return new Object[] {(byte) 4, "" + pick(BROKERS)};
            case 2: return new Object[] {(byte) 4, chance(50) ? "abc" : "-3"};
            case 3: return new Object[] {(byte) 32, chance(80) ? "group" + pick(3) : ""};
            case 4: return new Object[] {(byte) 16, "metrics" + pick(3)};
            case 5: return new Object[] {(byte) 2, chance(50) ? "" : "a b"};
            default: return new Object[] {(byte) 2, topic()};
        }
    }
    static final String[][] BROKER_CONFIGS = {{"log.cleaner.threads", "2"}, {"min.insync.replicas", "2"}, {"message.max.bytes", "2000000"}, {"no.such", "x"}};
    static final String[][] GROUP_CONFIGS = {{"consumer.session.timeout.ms", "50000"}, {"consumer.heartbeat.interval.ms", "6000"}, {"no.such", "x"}};
    static final String[][] METRIC_CONFIGS = {{"metrics", "org.apache.kafka.producer."}, {"interval.ms", "1000"}, {"match", "client_id=a"}, {"no.such", "x"}};
    static String[] config(byte type) {
        String[][] from = type == 4 ? BROKER_CONFIGS : type == 32 ? GROUP_CONFIGS : type == 16 ? METRIC_CONFIGS : CONFIGS;
        return from[pick(chance(75) ? from.length - 1 : from.length)];
    }

    static void alterConfigs() throws Exception {
        IncrementalAlterConfigsRequestData r = new IncrementalAlterConfigsRequestData().setValidateOnly(chance(8));
        for (int i = 0; i <= pick(2); i++) {
            Object[] res = resource();
            if (r.resources().find((byte) res[0], (String) res[1]) != null) continue;
            IncrementalAlterConfigsRequestData.AlterConfigsResource x = new IncrementalAlterConfigsRequestData.AlterConfigsResource()
                .setResourceType((byte) res[0]).setResourceName((String) res[1]);
            Set<String> used = new HashSet<>();
            for (int k = 0; k <= pick(3); k++) {
                String[] kv = config((byte) res[0]);
                if (!used.add(kv[0])) continue;
                int op = chance(60) ? 0 : pick(4);
                x.configs().add(new IncrementalAlterConfigsRequestData.AlterableConfig().setName(kv[0]).setConfigOperation((byte) op).setValue(op == 1 ? null : op >= 2 && kv[0].equals("cleanup.policy") ? (chance(50) ? "compact" : "delete") : kv[1]));
            }
            r.resources().add(x);
        }
        request(ApiKeys.INCREMENTAL_ALTER_CONFIGS, pick(2), r);
    }

    static void legacyConfigs() throws Exception {
        AlterConfigsRequestData r = new AlterConfigsRequestData().setValidateOnly(chance(8));
        Object[] res = resource();
        AlterConfigsRequestData.AlterConfigsResource x = new AlterConfigsRequestData.AlterConfigsResource().setResourceType((byte) res[0]).setResourceName((String) res[1]);
        for (int k = 0; k < pick(3); k++) {
            String[] kv = config((byte) res[0]);
            if (x.configs().find(kv[0]) == null) x.configs().add(new AlterConfigsRequestData.AlterableConfig().setName(kv[0]).setValue(kv[1]));
        }
        r.resources().add(x);
        request(ApiKeys.ALTER_CONFIGS, pick(3), r);
    }

    static void producerIds() throws Exception {
        int broker = pick(BROKERS);
        BrokerRegistration now = quorum.image.cluster().broker(broker);
        request(ApiKeys.ALLOCATE_PRODUCER_IDS, 0, new AllocateProducerIdsRequestData().setBrokerId(broker).setBrokerEpoch(now == null || chance(5) ? 1 : now.epoch()));
    }

    static void features() throws Exception {
        int version = pick(3);
        UpdateFeaturesRequestData r = new UpdateFeaturesRequestData();
        if (version >= 1) r.setValidateOnly(chance(40));
        String[] all = {"metadata.version", "kraft.version", "transaction.version", "group.version", "share.version", "streams.version", "eligible.leader.replicas.version", "nothing"};
        String name = all[pick(all.length)];
        UpdateFeaturesRequestData.FeatureUpdateKey u = new UpdateFeaturesRequestData.FeatureUpdateKey().setFeature(name)
            .setMaxVersionLevel((short) (name.equals("metadata.version") ? (chance(50) ? 33 : 28 + pick(8)) : name.equals("eligible.leader.replicas.version") ? 1 : pick(4) - (chance(10) ? 1 : 0)));
        if (version == 0) u.setAllowDowngrade(chance(50)); else u.setUpgradeType((byte) (1 + pick(3)));
        if (version == 0 && u.allowDowngrade()) { }
        r.featureUpdates().add(u);
        request(ApiKeys.UPDATE_FEATURES, version, r);
    }

    static void directories() throws Exception {
        TopicImage image = quorum.image.topics().getTopic(topic());
        int broker = pick(BROKERS);
        if (image == null || !dirs.containsKey(broker)) return;
        BrokerRegistration now = quorum.image.cluster().broker(broker);
        int index = pick(image.partitions().size() + 1);
        List<Uuid> d = dirs.get(broker);
        request(ApiKeys.ASSIGN_REPLICAS_TO_DIRS, 0, new AssignReplicasToDirsRequestData().setBrokerId(broker).setBrokerEpoch(now == null || chance(4) ? 1 : now.epoch())
            .setDirectories(List.of(new AssignReplicasToDirsRequestData.DirectoryData().setId(chance(92) ? d.get(pick(d.size())) : id()).setTopics(List.of(
                new AssignReplicasToDirsRequestData.TopicData().setTopicId(chance(97) ? image.id() : id()).setPartitions(List.of(new AssignReplicasToDirsRequestData.PartitionData().setPartitionIndex(index))))))));
    }

    static void controllers() throws Exception {
        int n = chance(70) ? NODE : 100 + pick(3);
        if (chance(30)) { request(ApiKeys.UNREGISTER_CONTROLLER, 0, new UnregisterControllerRequestData().setControllerId(n)); return; }
        ControllerRegistrationRequestData.FeatureCollection features = new ControllerRegistrationRequestData.FeatureCollection();
        QuorumFeatures.defaultSupportedFeatureMap(false).forEach((f, r) -> features.add(new ControllerRegistrationRequestData.Feature().setName(f).setMinSupportedVersion(r.min()).setMaxSupportedVersion(r.max())));
        ControllerRegistrationRequestData.ListenerCollection listeners = new ControllerRegistrationRequestData.ListenerCollection();
        listeners.add(new ControllerRegistrationRequestData.Listener().setName("CONTROLLER").setHost("c" + n).setPort(9094).setSecurityProtocol((short) 0));
        request(ApiKeys.CONTROLLER_REGISTRATION, 0, new ControllerRegistrationRequestData().setControllerId(n).setIncarnationId(id()).setFeatures(features).setListeners(listeners));
    }

    public static void main(String[] args) throws Exception {
        out = new PrintWriter(new FileWriter(args[0]));
        long seed = Long.parseLong(args[1]);
        int steps = Integer.parseInt(args[2]);
        racks = args[3].equals("racks");
        random = new Random(seed * 31 + 7);
        FaultHandler faults = (m, e) -> { faulted = true; System.err.println("FAULT " + m); if (e != null) e.printStackTrace(); return new RuntimeException(m, e); };
        Properties p = new Properties();
        p.put("node.id", "" + NODE); p.put("process.roles", "controller"); p.put("controller.quorum.voters", NODE + "@localhost:19099");
        p.put("listeners", "CONTROLLER://localhost:19099"); p.put("controller.listener.names", "CONTROLLER");
        p.put("num.partitions", "2"); p.put("default.replication.factor", "2");
        KafkaConfig config = new KafkaConfig(p, false);
        BootstrapMetadata bootstrap = BootstrapMetadata.fromVersions(MetadataVersion.LATEST_PRODUCTION,
            Map.of("eligible.leader.replicas.version", (short) 1), "test");
        controller = new QuorumController.Builder(NODE, CLUSTER).setTime(clock).setConfigSchema(KafkaRaftServer.configSchema()).setRaftClient(quorum)
            .setQuorumFeatures(new QuorumFeatures(NODE, QuorumFeatures.defaultSupportedFeatureMap(false), List.of(NODE)))
            .setDefaultReplicationFactor((short) 2).setDefaultNumPartitions(2).setReplicaPlacer(new StripedReplicaPlacer(new Random(seed)))
            .setLeaderImbalanceCheckIntervalNs(OptionalLong.of(300_000_000_000L)).setMaxIdleIntervalNs(OptionalLong.empty())
            .setSessionTimeoutNs(9_000_000_000L).setBootstrapMetadata(bootstrap).setStaticConfig(new HashMap<>(config.originals()))
            .setConfigurationValidator(new ControllerConfigurationValidator(config))
            .setNonFatalFaultHandler(faults).setFatalFaultHandler(faults).build();
        out.println("S " + NODE + " " + CLUSTER + " " + seed);
        quorum.listener.handleLeaderChange(new LeaderAndEpoch(OptionalInt.of(NODE), 1));
controller.findAllTopicIds(new ControllerRequestContext(new RequestHeaderData(), KafkaPrincipal.ANONYMOUS, OptionalLong.empty())).get();
        advance(0);
        for (int i = 0; i < 3; i++) { register(i, true); heartbeat(i, true); }
        for (int s = 0; s < steps; s++) {
            int op = pick(100);
            if (op < 22) heartbeat(pick(BROKERS), chance(60));
            else if (op < 28) register(pick(BROKERS), chance(60));
            else if (op < 44) createTopics();
            else if (op < 49) deleteTopics();
            else if (op < 55) createPartitions();
            else if (op < 68) alterPartition();
            else if (op < 72) electLeaders();
            else if (op < 77) reassign();
            else if (op < 78) listReassignments();
            else if (op < 84) alterConfigs();
            else if (op < 86) legacyConfigs();
            else if (op < 88) producerIds();
            else if (op < 90) features();
            else if (op < 93) directories();
            else if (op < 95) controllers();
            else if (op < 96) request(ApiKeys.UNREGISTER_BROKER, 0, new UnregisterBrokerRequestData().setBrokerId(pick(BROKERS + 1)));
            else if (op < 99) { tick(200 + pick(2000)); }
            else { victim = pick(BROKERS); for (int k = 0; k < 7; k++) tick(1500); }
        }
        out.close();
        System.exit(0);
    }
}
