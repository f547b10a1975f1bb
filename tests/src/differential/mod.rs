//! The raw differential driver: for every advertised (API, version) a success, errors that one node can return, and
//! malformed bodies go to both brokers, and the decoded answers are compared field by field but for a printed mask.
//!
//! A script is one function per API. It sends requests through a `Script`, which notes each answer under a label; the
//! first request of a script is the success, and malformed bodies are made from it.

mod malformed;
pub mod mask;
pub mod scripts;

use crate::Result;
use crate::raw::Raw;
use bytes::{Bytes, BytesMut};
use perf::client::{Connection, api_versions_request};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use wire::{ApiKey, ErrorCode, RequestKind, VersionRange};

/// Under this name stands an answer in whose place a subject may close the connection.
pub const MAY_CLOSE: &str = "may close";
const PATIENCE: Duration = Duration::from_secs(30);

/// One API's script at one version against one broker.
pub struct Script<'a> {
    pub version: i16,
    pub raw: &'a mut Raw,
    prefix: String,
    served: &'a [ApiKey],
    noted: Map<String, Value>,
    sample: Option<(ApiKey, Bytes)>,
}

impl Script<'_> {
    /// A name of this script, broker and version for a topic or a group.
    pub fn name(&self, plain: &str) -> String {
        format!("{}{plain}-v{}", self.prefix, self.version)
    }

    /// Sends a request and notes what came back.
    pub fn send(&mut self, label: &str, request: impl Into<RequestKind>) -> Result<Value> {
        let request = request.into();
        let mut body = BytesMut::new();
        let version = self.version;
        request.encode(&mut body, version).map_err(|error| format!("{label}, v{version}: {error}"))?;
        self.sample.get_or_insert((request.api(), body.clone().freeze()));
        let answer = self.raw.exchange(request.api(), version, &body)?;
        self.note(label, answer.clone());
        Ok(answer)
    }

    /// Sends a body that no request type can say.
    pub fn send_body(&mut self, label: &str, api: ApiKey, body: &[u8]) -> Result<()> {
        self.sample.get_or_insert((api, Bytes::copy_from_slice(body)));
        let answer = self.raw.exchange(api, self.version, body)?;
        self.note(label, answer);
        Ok(())
    }

    /// Malformed bodies are made from this request instead of the first: one whose body still is a request after a byte
    /// of it changed must not start anything.
    pub fn malform(&mut self, request: impl Into<RequestKind>) -> Result<()> {
        let (request, mut body) = (request.into(), BytesMut::new());
        request.encode(&mut body, self.version).map_err(|error| error.to_string())?;
        self.sample = Some((request.api(), body.freeze()));
        Ok(())
    }

    /// Goes on with a new connection: whatever the last answer did to the old one does not matter to the next.
    pub fn reconnect(&mut self) {
        self.raw.reconnect();
    }

    /// Whether the subject serves the API of this number.
    pub fn serves(&self, code: i64) -> bool {
        self.served.iter().any(|api| i64::from(api.code()) == code)
    }

    /// Sends a request of another API or version, only to prepare; its answer is not compared.
    pub fn prepare(&mut self, version: i16, request: impl Into<RequestKind>) -> Result<Value> {
        self.raw.ask(version, &request.into())
    }

    pub fn note(&mut self, label: &str, answer: Value) {
        let known = self.noted.insert(label.to_owned(), answer);
        assert!(known.is_none(), "two steps of a script are called {label}");
    }
}

/// Runs one API's script at one version; the result is masked.
pub fn run(api: ApiKey, version: i16, address: SocketAddr, prefix: &str, served: &[ApiKey]) -> Result<Value> {
    let (script, edit) = scripts::find(api).ok_or_else(|| format!("{api} is advertised and has no script"))?;
    let mut raw = Raw::new(address);
    let noted = Map::new();
    let mut run = Script { version, raw: &mut raw, prefix: prefix.to_owned(), served, noted, sample: None };
    script(&mut run)?;
    let (sampled, body) = run.sample.clone().ok_or_else(|| format!("the script of {api} sends nothing"))?;
    assert_eq!(sampled, api, "a script begins with a request of its API");
    for malformed in malformed::bodies(&body, prefix) {
        run.raw.reconnect();
        let mut answer = run.raw.exchange(api, version, &malformed.body)?;
        if let (Some((_, Some(edit))), true) = (scripts::find(api), answer.is_object()) {
            edit(&run, &mut answer);
        }
        let answer = if malformed.may_close { json!({ MAY_CLOSE: answer }) } else { answer };
        run.note(&format!("malformed: {}", malformed.label), answer);
    }
    let mut noted = std::mem::take(&mut run.noted);
    if let Some(edit) = edit {
        noted.values_mut().for_each(|answer| edit(&run, answer));
    }
    let mut value = Value::Object(noted);
    mask::apply(&mut value);
    Ok(value)
}

/// What a broker says it serves.
pub fn advertised(address: SocketAddr) -> Result<BTreeMap<ApiKey, VersionRange>> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let answer = connection.call(3, &api_versions_request())?;
    if answer.error_code != ErrorCode::None.code() {
        return Err(format!("ApiVersions answers error {}", answer.error_code).into());
    }
    let entries = answer.api_keys.iter().map(|entry| {
        let api = ApiKey::try_from(entry.api_key).map_err(|error| error.to_string())?;
        if entry.min_version > entry.max_version {
            return Err(format!("{api} is advertised from {} to {}", entry.min_version, entry.max_version));
        }
        Ok((api, VersionRange { min: entry.min_version, max: entry.max_version }))
    });
    let found: std::result::Result<BTreeMap<_, _>, String> = entries.collect();
    Ok(found?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is sent: without a script there is no case, and that fails the run.
    #[test]
    fn an_advertised_api_without_a_script_fails() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let without: Vec<ApiKey> = ApiKey::ALL.iter().copied().filter(|api| scripts::find(*api).is_none()).collect();
        assert!(!without.is_empty(), "APIs of later issues have none");
        for api in without {
            let fault = run(api, 0, address, "p-", &[]).expect_err("there is no script");
            assert!(fault.to_string().contains("has no script"), "{fault}");
        }
    }
}
