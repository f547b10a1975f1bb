//! Loop devices, where this machine lets a test make them.

use std::path::Path;
use std::process::Command;

/// Detached when it goes.
pub struct Loop(pub String);

impl Loop {
    pub fn attach(backing: &Path) -> Option<Loop> {
        let output = Command::new("losetup").arg("--show").arg("-f").arg(backing).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && name.starts_with("/dev/")).then(|| Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}
