//! The thread of the files: it does what the node asks for, one after the other, and answers in that order.

use crate::DaemonError;
use base::NodeId;
use bytes::Bytes;
use node::{DiskWork, Event, RUN_FILE};
use quorum::files::Files;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The node's end of the thread.
pub(crate) struct Disk {
    work: Option<mpsc::Sender<DiskWork>>,
    pub done: UnboundedReceiver<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    pub fn start(files: Files, directory: &Path, node: NodeId) -> Result<Disk, DaemonError> {
        let (work, inbox) = mpsc::channel();
        let (outbox, done) = unbounded_channel();
        let directory = directory.to_owned();
        let name = format!("metadata-{node}");
        let thread = std::thread::Builder::new().name(name).spawn(move || serve(files, &directory, &inbox, &outbox))?;
        Ok(Disk { work: Some(work), done, thread: Some(thread) })
    }

    /// False where the thread is gone, which only a bug there can cause.
    #[must_use]
    pub fn submit(&self, work: DiskWork) -> bool {
        self.work.as_ref().is_some_and(|sender| sender.send(work).is_ok())
    }

    /// Waits for the end of what was asked for.
    pub fn close(mut self) {
        self.work = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the metadata's files panicked");
        }
    }
}

fn serve(mut files: Files, directory: &Path, inbox: &mpsc::Receiver<DiskWork>, outbox: &UnboundedSender<Event>) {
    while let Ok(work) = inbox.recv() {
        let event = match work {
            DiskWork::Job(job) => Event::Quorum(files.run(job)),
            DiskWork::Read(read) => Event::Quorum(files.read(read)),
            DiskWork::StoreRun(content) => {
                Event::RunStored(store_run(directory, &content).map_err(|error| error.to_string()))
            }
        };
        if outbox.send(event).is_err() {
            return;
        }
    }
}

fn store_run(directory: &Path, content: &Bytes) -> Result<(), DaemonError> {
    let path = run_file(directory);
    replace(directory, &path, content).map_err(|error| DaemonError::File { what: "writing", path, error })
}

/// Replaces the file so that after a crash either content is there, whole.
fn replace(directory: &Path, path: &Path, content: &Bytes) -> io::Result<()> {
    let next = path.with_extension("tmp");
    let mut file = File::create(&next)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&next, path)?;
    File::open(directory)?.sync_all()
}

/// Whether a dataplane was ever registered from this directory: then it had a namespace.
pub fn has_run(directory: &Path) -> bool {
    run_file(directory).exists()
}

fn run_file(directory: &Path) -> PathBuf {
    directory.join(RUN_FILE)
}

/// What the file says, if it is there.
pub(crate) fn read_run(directory: &Path) -> Result<Option<Vec<u8>>, DaemonError> {
    let path = run_file(directory);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DaemonError::File { what: "reading", path, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_cannot_be_stored_says_what_to_do() {
        let nowhere = std::env::temp_dir().join(format!("pollux-no-such-{}", std::process::id()));
        let error = store_run(&nowhere, &Bytes::from_static(b"run")).expect_err("there is no such directory");
        assert!(error.to_string().ends_with("; correct the path"), "{error}");
        let error = DaemonError::File { what: "writing", path: nowhere, error: io::ErrorKind::StorageFull.into() };
        assert!(error.to_string().ends_with("; make room on its file system"), "{error}");
    }
}
