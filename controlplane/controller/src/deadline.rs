//! Requests that say how long they may take. Kafka counts from when it has read one: what gives no time has run out at
//! once, and is answered so without having been looked at.

use crate::elections::refuse_elections;
use crate::error::ApiError;
use crate::partitions::refuse_growth;
use crate::reassignments::refuse_reassignments;
use crate::topics::{refuse_creation, refuse_deletion};
use wire::{ErrorCode, RequestKind, ResponseKind};

/// The answer to a request that gives no time; `None` for one that is to be carried out.
pub fn run_out(version: i16, request: &RequestKind) -> Option<ResponseKind> {
    let error = ApiError { code: ErrorCode::RequestTimedOut, message: None };
    Some(match request {
        RequestKind::CreateTopics(r) if r.timeout_ms <= 0 => refuse_creation(r, &error).into(),
        RequestKind::DeleteTopics(r) if r.timeout_ms <= 0 => refuse_deletion(r, &error).into(),
        RequestKind::CreatePartitions(r) if r.timeout_ms <= 0 => refuse_growth(r, &error).into(),
        RequestKind::ElectLeaders(r) if r.timeout_ms <= 0 => refuse_elections(version, r, &error).into(),
        RequestKind::AlterPartitionReassignments(r) if r.timeout_ms <= 0 => refuse_reassignments(r, &error).into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest};

    #[test]
    fn without_time_everything_asked_for_has_run_out() {
        for (timeout_ms, late) in [(-1, true), (0, true), (1, false)] {
            let names = vec!["a".into(), "b".into()];
            let request = DeleteTopicsRequest { topic_names: names, timeout_ms, ..Default::default() };
            let answer = run_out(5, &request.into());
            assert_eq!(answer.is_some(), late, "{timeout_ms}");
            if let Some(ResponseKind::DeleteTopics(answer)) = answer {
                let code = ErrorCode::RequestTimedOut.code();
                assert_eq!(answer.responses.iter().map(|topic| topic.error_code).collect::<Vec<_>>(), [code, code]);
            }
            let request = CreateTopicsRequest { timeout_ms, ..Default::default() };
            assert_eq!(run_out(7, &request.into()).is_some(), late);
        }
    }
}
