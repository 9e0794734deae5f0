//! Runs commands, one after another, and takes the median of their times and the peak of their memory.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// What a piece of work took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Median wall time of all its commands together.
    pub(crate) seconds: f64,
    /// Largest resident memory of any of its commands, in MiB.
    pub(crate) rss_mib: f64,
}

impl Sample {
    pub(crate) fn show(&self) -> String {
        // Only memory was measured.
        if self.seconds == 0.0 {
            return format!("{:.2} MiB", self.rss_mib);
        }
        let time =
            if self.seconds < 0.1 { format!("{:.1} ms", self.seconds * 1e3) } else { format!("{:.2} s", self.seconds) };
        // A server's memory is not its client's, so it is not measured there.
        if self.rss_mib == 0.0 { time } else { format!("{time} ({:.1} MiB)", self.rss_mib) }
    }
}

/// Runs two pieces of work in turns, so that drift of the machine hits both.
pub(crate) fn alternate(
    rounds: usize,
    ours: impl Fn() -> Result<Vec<Command>>,
    theirs: impl Fn() -> Result<Vec<Command>>,
) -> Result<(Sample, Sample)> {
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        our_times.push(time(ours()?)?);
        their_times.push(time(theirs()?)?);
    }
    Ok((sample(our_times, &ours)?, sample(their_times, &theirs)?))
}

/// Runs one piece of work again and again.
pub(crate) fn repeat(rounds: usize, work: impl Fn() -> Result<Vec<Command>>) -> Result<Sample> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(time(work()?)?);
    }
    sample(times, &work)
}

fn sample(mut times: Vec<f64>, work: &impl Fn() -> Result<Vec<Command>>) -> Result<Sample> {
    times.sort_by(f64::total_cmp);
    let seconds = times[times.len() / 2];
    let mut rss_mib: f64 = 0.0;
    for command in work()? {
        rss_mib = rss_mib.max(peak_memory(&command)?);
    }
    Ok(Sample { seconds, rss_mib })
}

fn time(commands: Vec<Command>) -> Result<f64> {
    let mut seconds = 0.0;
    for mut command in commands {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().with_context(|| format!("run {command:?}"))?;
        let mut stderr = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            pipe.read_to_string(&mut stderr)?;
        }
        let status = child.wait()?;
        seconds += began.elapsed().as_secs_f64();
        if !status.success() {
            bail!("{command:?} ended with {status}: {stderr}");
        }
    }
    Ok(seconds)
}

/// Peak resident memory, by GNU time, in a run of its own so that it does not disturb the timing.
fn peak_memory(command: &Command) -> Result<f64> {
    Ok(gnu_time(command, "%M")? / 1024.0)
}

/// The least seconds that the kernel spent for these commands in so many runs.
pub(crate) fn system_seconds(rounds: usize, work: impl Fn() -> Result<Vec<Command>>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..rounds {
        let mut seconds = 0.0;
        for command in work()? {
            seconds += gnu_time(&command, "%S")?;
        }
        least = least.min(seconds);
    }
    Ok(least)
}

/// One number of GNU time.
fn gnu_time(command: &Command, what: &str) -> Result<f64> {
    let output = Command::new("/usr/bin/time")
        .args(["-f", what, "--"])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .context("run /usr/bin/time (apt-get install time)")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    stderr.lines().last().unwrap_or_default().trim().parse().with_context(|| format!("{command:?}: {stderr}"))
}
