//! Kafka's metrics and ours for the same question: the README's table, which a test holds to what is really shown.

/// Kafka's MBean (or attribute), ours, and what differs.
const TABLE: &[(&str, &str, &str)] = &[
    ("kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec", "produce_bytes_total", "a total, not a rate"),
    ("kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec", "fetch_bytes_total", "a total"),
    (
        "kafka.server:type=BrokerTopicMetrics,name=TotalProduceRequestsPerSec",
        "request_seconds",
        "api=\"Produce\", count",
    ),
    ("kafka.server:type=BrokerTopicMetrics,name=TotalFetchRequestsPerSec", "request_seconds", "api=\"Fetch\", count"),
    ("kafka.server:type=BrokerTopicMetrics,name=FailedProduceRequestsPerSec", "produce_refused_total", "batches"),
    ("kafka.network:type=RequestMetrics,name=RequestsPerSec", "request_seconds", "count, by API"),
    (
        "kafka.network:type=RequestMetrics,name=TotalTimeMs",
        "request_latency_seconds",
        "seconds, by API: p50, p90, p99, p99.9 within 0.8 %, and the longest; `pollux_request_seconds` has the buckets",
    ),
    (
        "kafka.network:type=RequestMetrics,name=ErrorsPerSec",
        "request_errors_total",
        "Produce and Fetch alone, by API, not by error",
    ),
    (
        "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
        "loop_busy_nanoseconds_total",
        "busy time, by core",
    ),
    (
        "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
        "loop_busy_nanoseconds_total",
        "the same loop",
    ),
    ("kafka.server:type=socket-server-metrics,name=connection-count", "connections", "by core"),
    ("kafka.server:type=socket-server-metrics,name=connection-creation-rate", "connections_opened_total", "a total"),
    ("kafka.network:type=SocketServer,name=MemoryPoolUsed", "receive_used_bytes", "by core"),
    ("kafka.server:type=ReplicaManager,name=PartitionCount", "partitions", "by core"),
    ("kafka.server:type=ReplicaManager,name=LeaderCount", "leader_partitions", "by core"),
    ("kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount", "under_min_isr_partitions", "of the cluster"),
    ("kafka.server:type=ReplicaManager,name=OfflineReplicaCount", "namespace_stopped", "by core"),
    ("kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions", "fetch_sessions", "by core"),
    (
        "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
        "fetch_sessions_evicted_total",
        "a total",
    ),
    (
        "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch",
        "fetch_waits_total",
        "waits begun",
    ),
    ("kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs", "log_commit_seconds", "a commit of the journal"),
    ("kafka.log:type=LogManager,name=OfflineLogDirectoryCount", "namespace_stopped", "by core"),
    ("kafka.controller:type=KafkaController,name=ActiveControllerCount", "active_controller", ""),
    ("kafka.controller:type=KafkaController,name=ActiveBrokerCount", "active_brokers", ""),
    ("kafka.controller:type=KafkaController,name=FencedBrokerCount", "fenced_brokers", ""),
    ("kafka.controller:type=KafkaController,name=GlobalTopicCount", "topics", ""),
    ("kafka.controller:type=KafkaController,name=GlobalPartitionCount", "cluster_partitions", ""),
    ("kafka.controller:type=KafkaController,name=OfflinePartitionsCount", "offline_partitions", ""),
    ("kafka.controller:type=KafkaController,name=PreferredReplicaImbalanceCount", "non_preferred_leaders", ""),
    ("kafka.controller:type=KafkaController,name=LastAppliedRecordOffset", "metadata_offset", ""),
    (
        "kafka.controller:type=ControllerEventManager,name=EventQueueProcessingTimeMs",
        "controlplane_event_seconds",
        "seconds",
    ),
    ("kafka.server:type=raft-metrics,name=current-state", "quorum_state", "by label"),
    ("kafka.server:type=raft-metrics,name=current-epoch", "quorum_epoch", ""),
    ("kafka.server:type=raft-metrics,name=current-leader", "quorum_leader", ""),
    ("kafka.server:type=raft-metrics,name=high-watermark", "quorum_high_watermark", ""),
    ("kafka.server:type=raft-metrics,name=log-end-offset", "quorum_log_end", ""),
    (
        "kafka.server:type=broker-metadata-metrics,name=last-applied-record-offset",
        "link_metadata_offset",
        "what=\"view\"",
    ),
    ("kafka.server:type=KafkaServer,name=BrokerState", "broker_state", "by label"),
];

/// The table of the README.
pub fn metric_names_markdown() -> String {
    let mut out = String::from("| Kafka | Pollux | |\n|---|---|---|\n");
    for (kafka, ours, note) in TABLE {
        let prefix = crate::prometheus::PREFIX;
        out.push_str(&format!("| `{kafka}` | `{prefix}{ours}` | {note} |\n"));
    }
    out
}
