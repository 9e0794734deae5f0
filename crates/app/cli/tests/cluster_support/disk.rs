//! A disk that is small, or full, or gets larger.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorate_testkit::run;

/// A small disk, which may get larger.
pub(crate) struct Disk(PathBuf);

impl Disk {
    pub(crate) fn new(place: &Path, mebibytes: u32) -> Disk {
        std::fs::create_dir(place).unwrap();
        let size = format!("size={mebibytes}m");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "quorate-test"]).arg(place));
        Disk(place.to_owned())
    }

    /// Takes all the room that is left, and what anyone gives back, while `work` goes on.
    pub(crate) fn kept_full<T>(&self, work: impl FnOnce() -> T) -> T {
        let fill = || {
            let mut command = Command::new("dd");
            command.args(["if=/dev/zero", "bs=4k", "oflag=append", "conv=notrunc"]);
            let _ = command.arg(format!("of={}", self.filler())).output();
        };
        fill();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    fill();
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let came = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            over.store(true, Ordering::Relaxed);
            came.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(crate) fn empty(&self) {
        run(Command::new("rm").arg(self.filler()));
    }

    fn filler(&self) -> String {
        self.0.join("filler").display().to_string()
    }

    pub(crate) fn enlarge(&self, mebibytes: u32) {
        run(Command::new("mount").args(["-o", &format!("remount,size={mebibytes}m")]).arg(&self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
