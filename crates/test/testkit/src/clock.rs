//! Clocks that are stepped: one that only the programs see that are told of it, and the machine's own.
//!
//! **Rule:** the machine's clock is put back where it would be without us, whatever happens to the test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};

/// A clock that runs beside the machine's, for programs that are started with its environment.
#[derive(Debug)]
pub struct FakeClock {
    dir: PathBuf,
    library: PathBuf,
}

impl FakeClock {
    /// Keeps its file in `dir`. It shows the right time at first.
    pub fn new(dir: &Path) -> FakeClock {
        forget_the_dead();
        let clock = FakeClock { dir: dir.to_owned(), library: library() };
        clock.set(0);
        clock
    }

    /// So many seconds beside the machine's clock from now on.
    pub fn set(&self, seconds: i64) {
        let (new, file) = (self.dir.join("clock.new"), self.file());
        // Replaced as a whole: it is read at every look at the clock.
        #[expect(clippy::disallowed_methods, reason = "a test's own file")]
        std::fs::write(&new, format!("{seconds:+}")).and_then(|()| std::fs::rename(&new, &file)).expect("a file");
    }

    fn file(&self) -> PathBuf {
        self.dir.join("clock")
    }

    /// What programs are to be started with. Their sleeps and limits are not touched, nor are the times of files.
    pub fn env(&self) -> Vec<(String, String)> {
        let pairs = [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ];
        pairs.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }
}

/// The library keeps something in memory under the number of each process, for ever, and stays silent where a later process with that number
/// finds it: in a container, numbers are small and come again.
fn forget_the_dead() {
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        if let Some(number) = number
            && !Path::new("/proc").join(number).exists()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Debian keeps it apart from other libraries, below a folder for each kind of machine.
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut places = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    places.find(|place| place.exists()).expect("`libfaketime.so.1` is missing: run `make tools`")
}

/// The machine's own clock; dropped, it shows again what it would show without us. Needs root.
#[derive(Debug)]
pub struct MachineClock {
    /// The machine's clock and its uptime when we came.
    began: (Timespec, Timespec),
}

impl MachineClock {
    /// Remembers what it shows.
    #[expect(clippy::new_without_default, reason = "it is the one clock that there is, as it is now")]
    pub fn new() -> MachineClock {
        MachineClock { began: (clock_gettime(ClockId::Realtime), clock_gettime(ClockId::Boottime)) }
    }

    /// So many seconds beside what it would show without us.
    pub fn set(&self, seconds: i64) {
        let passed = nanos(clock_gettime(ClockId::Boottime)) - nanos(self.began.1);
        let now = nanos(self.began.0) + passed + i128::from(seconds) * SECOND;
        let (tv_sec, tv_nsec) = (now.div_euclid(SECOND), now.rem_euclid(SECOND));
        let time = Timespec {
            tv_sec: tv_sec.try_into().expect("a time of this century"),
            tv_nsec: tv_nsec.try_into().expect("less than a second"),
        };
        clock_settime(ClockId::Realtime, time).expect("root may set the clock");
    }
}

impl Drop for MachineClock {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The clocks of several agents: one for each, or the machine's, and with it everybody's, where `QUORATE_CLOCK=machine` says so.
#[derive(Debug)]
pub enum Clocks {
    /// Each agent has its own.
    Own(Vec<FakeClock>),
    /// All have the machine's.
    Machine(MachineClock),
}

/// An hour ahead, right, an hour behind, right.
const STEPS: [i64; 4] = [3600, 0, -3600, 0];
/// Between two steps.
const STEP_EVERY: Duration = Duration::from_millis(400);

impl Clocks {
    /// Clocks for so many agents, whose files are kept in `dir`.
    pub fn new(dir: &Path, count: usize) -> Clocks {
        if std::env::var("QUORATE_CLOCK").is_ok_and(|which| which == "machine") {
            return Clocks::Machine(MachineClock::new());
        }
        let clock = |at: usize| {
            let own = dir.join(format!("clock-{at}"));
            std::fs::create_dir(&own).expect("a directory for a clock");
            FakeClock::new(&own)
        };
        Clocks::Own((0..count).map(clock).collect())
    }

    /// What the agent at this place is to be started with.
    pub fn env(&self, at: usize) -> Vec<(String, String)> {
        match self {
            Clocks::Own(clocks) => clocks[at].env(),
            Clocks::Machine(_) => Vec::new(),
        }
    }

    /// Steps them one after the other, ahead, right and behind, while `work` goes on, and leaves them right. Returns what it came
    /// to, and how often a clock was stepped.
    pub fn stepped<T>(&self, work: impl FnOnce() -> T) -> (T, usize) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let steps = scope.spawn(|| self.step_until(&over));
            let guard = Over(&over);
            let came = work();
            drop(guard);
            (came, steps.join().expect("a thread that steps clocks"))
        })
    }

    fn step_until(&self, over: &AtomicBool) -> usize {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            match self {
                // Each is elsewhere in the round than the one before it.
                Clocks::Own(clocks) => {
                    clocks.iter().enumerate().for_each(|(at, clock)| clock.set(STEPS[(at + count) % STEPS.len()]));
                }
                Clocks::Machine(clock) => clock.set(STEPS[count % STEPS.len()]),
            }
            count += 1;
            std::thread::sleep(STEP_EVERY);
        }
        match self {
            Clocks::Own(clocks) => clocks.iter().for_each(|clock| clock.set(0)),
            Clocks::Machine(clock) => clock.set(0),
        }
        count
    }
}

/// Says that it is over, also where the work ends by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const SECOND: i128 = 1_000_000_000;

fn nanos(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * SECOND + i128::from(time.tv_nsec)
}
