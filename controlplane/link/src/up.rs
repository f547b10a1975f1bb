//! From the dataplane to the control plane.

use base::{ConnectionId, LeaderEpoch, ListenerId, NodeId, Offset, PartitionEpoch, PartitionId, Uuid};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    Hello(Box<UpHello>),
    /// Part of the list of partitions held, in pieces of `IMAGE_ITEMS_MAX`; the last piece says so.
    Held {
        partitions: Vec<HeldPartition>,
        last: bool,
    },
    /// A client's request that the dataplane does not own.
    Forward(Box<Forward>),
    /// The connection is gone: answers for it are dropped, its members are left to their session timeouts.
    ConnectionClosed(ConnectionId),
    /// Topics a client asked for that the view lacks and that may be created (Metadata with auto-creation).
    AutoCreate {
        topics: Vec<String>,
        principal: String,
        client_host: String,
    },
    /// Duties up to this metadata offset are in force on every core. What they record is staged in the journal before any
    /// append that follows, so nothing acknowledged under them outlives them. A power cut before the next commit may take
    /// the creation of a partition that is still empty: the next hello does not list it, and the image creates it again.
    DutiesApplied {
        metadata_offset: i64,
    },
    /// The view up to this metadata offset is what clients are told.
    ViewApplied {
        metadata_offset: i64,
    },
    InternalAppended {
        id: u64,
        result: Result<Offset, InternalAppendRefusal>,
    },
    InternalRead {
        id: u64,
        result: Result<InternalSlice, InternalReadRefusal>,
    },
    /// A block of producer ids is used up: another is wanted (two are kept in hand).
    ProducerIdsWanted,
    ProposeIsr {
        partition: PartitionId,
        epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
        isr: Vec<NodeId>,
    },
    DirectoryFailed {
        directory: Uuid,
        reason: String,
    },
    /// A clean stop was asked for and everything is durable.
    Stopped,
    /// Answer to `Down::Ping`, with the number of the ping.
    Pong(u64),
}

/// Says what the dataplane is and has; sent first on every connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpHello {
    pub protocol_version: u16,
    pub software_version: String,
    pub cluster_id: String,
    pub node_id: NodeId,
    pub directories: Vec<Uuid>,
    /// Random at every start of the dataplane; a partition is never led on under an epoch of another run.
    pub run_id: Uuid,
    /// The boot id of the host, as the kernel tells it.
    pub boot_id: String,
    /// The last run ended by a clean stop.
    pub clean_stop: bool,
    /// Damage was found at opening: the last run may have lost something it reported.
    pub damaged: bool,
    pub durability_cache: bool,
    /// Largest metadata offset applied of duties and of the view, and the cluster epoch they came under.
    pub duties_offset: Option<i64>,
    pub view_offset: Option<i64>,
    /// Listeners as bound (real port numbers).
    pub listeners: Vec<BoundListener>,
    /// Producer ids still in hand, so that a control plane that restarts grants no block needlessly.
    pub producer_ids_in_hand: u32,
    pub cores: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundListener {
    pub id: ListenerId,
    pub name: String,
    /// What clients are told.
    pub advertised_host: String,
    pub advertised_port: u16,
    /// Kafka's number of the security protocol (0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL).
    pub security_protocol: i16,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldPartition {
    pub partition: PartitionId,
    pub directory: Uuid,
    pub leader_epoch: Option<LeaderEpoch>,
    pub log_start: Offset,
    pub end: Offset,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forward {
    /// Chosen by the dataplane, unique in its run; the answer names it.
    pub id: u64,
    pub connection: ConnectionId,
    pub listener: ListenerId,
    pub listener_name: String,
    pub principal: String,
    pub client_host: String,
    pub api_key: i16,
    pub api_version: i16,
    pub correlation_id: i32,
    pub client_id: Option<String>,
    /// From ApiVersions (KIP-511).
    pub client_software_name: String,
    pub client_software_version: String,
    /// The request after its header.
    pub body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InternalAppendRefusal {
    /// Nothing was appended and nothing will be; the text is for the log.
    Refused {
        error_code: i16,
        message: String,
    },
    OtherEpoch {
        current: Option<LeaderEpoch>,
    },
    /// It may or may not be in the log.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InternalReadRefusal {
    OtherEpoch { current: Option<LeaderEpoch> },
    OutOfRange { log_start: Offset },
    Failed { message: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InternalSlice {
    /// Whole record batches.
    pub batches: Bytes,
    pub log_start: Offset,
    /// What replay must reach.
    pub high_watermark: Offset,
    pub next: Offset,
}
