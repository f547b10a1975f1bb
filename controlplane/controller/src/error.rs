//! A refusal as Kafka words it: an error code and, where the API carries one, a message.

use settings::{Refusal, RefusalKind};
use wire::{ErrorCode, KafkaString};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub code: ErrorCode,
    pub message: Option<String>,
}

impl ApiError {
    pub const NONE: ApiError = ApiError { code: ErrorCode::None, message: None };

    pub fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError { code, message: Some(message.into()) }
    }

    /// The code with the text that Kafka has for it when nothing more is known.
    pub fn plain(code: ErrorCode) -> ApiError {
        ApiError { code, message: default_message(code).map(str::to_owned) }
    }

    pub fn code(&self) -> i16 {
        self.code.code()
    }

    pub fn message(&self) -> Option<KafkaString> {
        self.message.as_deref().map(KafkaString::from)
    }
}

/// An error that Kafka raises with the text it has for its code carries no message of its own on the wire.
pub(crate) fn bare(code: ErrorCode) -> ApiError {
    ApiError { code, message: None }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let code = match refusal.kind {
            RefusalKind::InvalidConfig => ErrorCode::InvalidConfig,
            RefusalKind::InvalidRequest => ErrorCode::InvalidRequest,
        };
        ApiError::new(code, refusal.message)
    }
}

/// Facts of the protocol: what Kafka's clients show for these codes.
fn default_message(code: ErrorCode) -> Option<&'static str> {
    Some(match code {
        ErrorCode::UnknownTopicOrPartition => "This server does not host this topic-partition.",
        ErrorCode::UnknownTopicId => "This server does not host this topic ID.",
        ErrorCode::NotController => "This is not the correct controller for this cluster.",
        ErrorCode::ElectionNotNeeded => "Leader election not needed for topic partition.",
        ErrorCode::PreferredLeaderNotAvailable => "The preferred leader was not available.",
        ErrorCode::EligibleLeadersNotAvailable => "Eligible topic partition leaders are not available.",
        ErrorCode::NoReassignmentInProgress => "No partition reassignment is in progress.",
        ErrorCode::TopicDeletionDisabled => "Topic deletion is disabled.",
        ErrorCode::UnknownServerError => "The server experienced an unexpected error when processing the request.",
        _ => return None,
    })
}
