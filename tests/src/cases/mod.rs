//! The cases, each written once: a function that drives one broker and returns what a user saw. The run compares the two
//! brokers' results; a case itself expects nothing but to get through.

pub mod known;
pub mod run;
pub(crate) mod traps;
mod traps_connections;
pub(crate) mod traps_groups;
mod traps_nodes;
mod traps_retention;
mod traps_scale;

use crate::jvm::Runner;
use crate::node::Broker;
use crate::raw::Raw;
use crate::reference::Wishes;
use crate::{Fault, Result, differential, tools, tools_edges};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::{ApiKey, VersionRange};

/// What a case works with.
pub struct Bench<'a> {
    pub broker: &'a mut dyn Broker,
    /// Shared, so that a case may hold on to what else is in here.
    pub java: &'a RefCell<Runner>,
    /// In front of every name this case makes; cut out of its result.
    pub prefix: String,
    /// APIs that both brokers of this run serve.
    pub served: &'a [ApiKey],
    /// Cases about size take the sizes they are about, not those of a short run.
    pub long: bool,
}

impl Bench<'_> {
    pub fn address(&self) -> SocketAddr {
        self.broker.address()
    }

    pub fn raw(&self) -> Raw {
        Raw::new(self.address())
    }

    /// A node of the case's own: of the same kind as the one that is shared, with other settings or to be restarted.
    pub fn own_node(&self, wishes: &Wishes) -> Result<Box<dyn Broker>> {
        self.broker.another(wishes)
    }

    pub fn name(&self, plain: &str) -> String {
        format!("{}{plain}", self.prefix)
    }
}

type Run = Box<dyn Fn(&mut Bench<'_>) -> Result<Value>>;

pub struct Case {
    pub name: String,
    pub run: Run,
}

impl Case {
    fn new(name: impl Into<String>, run: impl Fn(&mut Bench<'_>) -> Result<Value> + 'static) -> Case {
        Case { name: name.into(), run: Box::new(run) }
    }
}

/// A case that cannot run here, with the reason.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// A case that the reference cannot play, with the reason: the subject then plays it alone and must get through.
#[derive(Debug)]
pub struct Apart(pub String);

impl std::fmt::Display for Apart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Apart {}

/// The reason, if a case ended because it cannot run here.
pub fn skipped(fault: &Fault) -> Option<&str> {
    fault.downcast_ref::<Skip>().map(|skip| skip.0.as_str())
}

/// All cases in the order in which they run. `advertised` is what the subject serves: each pair of API and version is a
/// case, and a pair without a script fails.
pub fn all(java: &[String], advertised: &BTreeMap<ApiKey, VersionRange>) -> Vec<Case> {
    let mut cases = Vec::new();
    for name in java {
        let case = name.clone();
        cases.push(Case::new(format!("java/{name}"), move |bench| {
            let address = bench.address();
            bench.java.borrow_mut().run(&case, address, &bench.prefix)
        }));
    }
    cases.extend(tools::CASES.iter().map(|(name, run)| Case::new(*name, run)));
    cases.extend(tools_edges::CASES.iter().map(|(name, run)| Case::new(*name, run)));
    let traps = [
        traps::CASES,
        traps_connections::CASES,
        traps_groups::CASES,
        traps_retention::CASES,
        traps_nodes::CASES,
        traps_scale::CASES,
    ];
    cases.extend(traps.concat().into_iter().map(|(name, run)| Case::new(name, run)));
    for (api, versions) in advertised {
        let (api, versions) = (*api, *versions);
        for version in versions.iter() {
            cases.push(Case::new(format!("raw/{api}/v{version}"), move |bench| {
                differential::run(api, version, bench.address(), &bench.prefix, bench.served)
            }));
        }
    }
    cases
}
