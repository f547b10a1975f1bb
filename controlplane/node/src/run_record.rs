//! The file that names the dataplane's last run and the incarnation its broker is registered under: what tells a control
//! plane that starts alone from a dataplane that has started anew (design 04).

use base::Uuid;
use bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunRecord {
    pub run: Uuid,
    pub boot_id: String,
    pub incarnation: Uuid,
    /// The broker epoch that the registration of this incarnation names as its predecessor's; `None` where that one may
    /// have lost something. Needed again when the node ends between writing this file and the registration.
    pub previous_epoch: Option<i64>,
}

impl RunRecord {
    pub fn encode(&self) -> Bytes {
        let previous = self.previous_epoch.unwrap_or(-1);
        Bytes::from(format!(
            "# The last run of the dataplane, written by pollux\nversion=1\nrun={}\nboot={}\nincarnation={}\nprevious.epoch={previous}\n",
            self.run,
            self.boot_id.replace(['\n', '\r'], " "),
            self.incarnation,
        ))
    }

    pub fn decode(bytes: &[u8]) -> Result<RunRecord, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.ok_or_else(|| format!("it has no {key}"))
        };
        if value("version")? != "1" {
            return Err(format!("its version {} is unknown", value("version")?));
        }
        let id = |key: &str| value(key)?.parse::<Uuid>().map_err(|error| format!("{key}: {error}"));
        let previous = value("previous.epoch")?.parse::<i64>().map_err(|error| format!("previous.epoch: {error}"))?;
        Ok(RunRecord {
            run: id("run")?,
            boot_id: value("boot")?.to_owned(),
            incarnation: id("incarnation")?,
            previous_epoch: (previous >= 0).then_some(previous),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_and_garbage_is_refused() {
        for previous_epoch in [None, Some(17)] {
            let boot_id = "6f1c-8\n=x".to_owned();
            let record = RunRecord { run: Uuid(500), boot_id, incarnation: Uuid(u128::MAX), previous_epoch };
            let read = RunRecord::decode(&record.encode()).unwrap();
            assert_eq!(read, RunRecord { boot_id: "6f1c-8 =x".to_owned(), ..record.clone() });
            let whole = record.encode();
            for cut in 0..whole.len() - 3 {
                assert!(RunRecord::decode(&whole[..cut]).is_err(), "{cut}");
            }
        }
        assert!(RunRecord::decode(&[0xFF]).is_err());
        assert!(RunRecord::decode(b"version=2\n").unwrap_err().contains("unknown"));
    }
}
