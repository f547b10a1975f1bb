//! Why a tool could not do what it was asked.

use crate::source::Unread;
use base::PartitionId;
use nvme_log::OpenError;

#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{0}")]
    Open(nvme_device::OpenError),
    #[error("the namespace is empty: nothing was ever stored in it")]
    NotFormatted,
    #[error("the namespace holds something that is no intact superblock; nothing is changed")]
    Unreadable,
    #[error("{0}")]
    Unread(#[from] Unread),
    #[error("an opening refuses the namespace: {0}")]
    Refused(OpenError),
    #[error("an opening of this namespace does not end: {0}; nothing is believed of it")]
    Stuck(String),
    #[error("the namespace stopped: {0}")]
    Stopped(nvme_log::StopReason),
    #[error("there is no partition {0} in the namespace")]
    NoPartition(PartitionId),
    #[error(
        "the partition {0} is there already and has had records: import takes a new one, or one of a topic just created"
    )]
    Exists(PartitionId),
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Invalid(String),
    #[error("the system refused: {0}")]
    System(#[from] std::io::Error),
}
