//! A member of a classic group.

use crate::answer::Asker;
use bytes::Bytes;
use std::time::Duration;
use wire::KafkaString;
use wire::messages::describe_groups_response::DescribedGroupMember;
use wire::messages::group_metadata_value::MemberMetadata;
use wire::messages::join_group_request::JoinGroupRequestProtocol;

/// A way of assigning partitions that a member knows, with what it says to the leader when this one is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Protocol {
    pub name: KafkaString,
    pub metadata: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub id: KafkaString,
    /// Present for static members (KIP-345).
    pub instance: Option<KafkaString>,
    pub client_id: KafkaString,
    pub client_host: KafkaString,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    /// In the order of its preference.
    pub protocols: Vec<Protocol>,
    pub assignment: Bytes,
    pub awaiting_join: Option<Asker>,
    pub awaiting_sync: Option<Asker>,
    /// It has joined but not yet heard so.
    pub is_new: bool,
}

/// What a request offers, in memory of its own: a request's frame may be large, and a member lives long.
pub(crate) fn protocols_of(offered: &[JoinGroupRequestProtocol]) -> Vec<Protocol> {
    let own = |offer: &JoinGroupRequestProtocol| Protocol {
        name: offer.name.detached(),
        metadata: Bytes::copy_from_slice(&offer.metadata),
    };
    offered.iter().map(own).collect()
}

/// A client's number of milliseconds as a time to wait, never so short that a timer would fire in its own turn.
pub(crate) fn wait(milliseconds: i32) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0).max(1))
}

impl Member {
    pub fn is_static(&self) -> bool {
        self.instance.is_some()
    }

    pub fn metadata(&self, protocol: &str) -> Option<&Bytes> {
        self.protocols.iter().find(|own| own.name == *protocol).map(|own| &own.metadata)
    }

    pub fn matches(&self, offered: &[JoinGroupRequestProtocol]) -> bool {
        self.protocols.len() == offered.len()
            && self.protocols.iter().zip(offered).all(|(own, new)| own.name == new.name && own.metadata == new.metadata)
    }

    /// Members that wait for a rebalance cannot send heartbeats; but a new one may give up without a word.
    pub fn is_excused(&self) -> bool {
        !self.is_new && (self.awaiting_join.is_some() || self.awaiting_sync.is_some())
    }

    pub fn describe(&self, protocol: Option<&str>) -> DescribedGroupMember {
        DescribedGroupMember {
            member_id: self.id.clone(),
            group_instance_id: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            member_metadata: protocol.and_then(|name| self.metadata(name)).cloned().unwrap_or_default(),
            member_assignment: self.assignment.clone(),
            ..Default::default()
        }
    }

    pub fn to_record(&self, protocol: &str, assignment: Bytes) -> MemberMetadata {
        MemberMetadata {
            member_id: self.id.clone(),
            group_instance_id: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout: self.rebalance_timeout_ms,
            session_timeout: self.session_timeout_ms,
            subscription: self.metadata(protocol).cloned().unwrap_or_default(),
            assignment,
            ..Default::default()
        }
    }

    pub fn from_record(record: MemberMetadata, protocol: Option<&KafkaString>) -> Member {
        let name = protocol.cloned().unwrap_or_default();
        Member {
            id: record.member_id,
            instance: record.group_instance_id,
            client_id: record.client_id,
            client_host: record.client_host,
            // Records of version 0 have no rebalance timeout.
            rebalance_timeout_ms: if record.rebalance_timeout == -1 {
                record.session_timeout
            } else {
                record.rebalance_timeout
            },
            session_timeout_ms: record.session_timeout,
            protocols: vec![Protocol { name, metadata: record.subscription }],
            assignment: record.assignment,
            awaiting_join: None,
            awaiting_sync: None,
            is_new: false,
        }
    }
}
