//! Runs every test of the workspace: two programs at a time, the longest part first, and what failed once more, alone.
//!
//! Most tests wait for real servers most of the time, so two programs side by side take half as long as one after the other. Now and
//! then one of them gets too little of the machine for a limit it set itself; run alone, it shows whether that was all.
//!
//! **Rule:** what fails twice has failed. What passes only alone is named at the end, and its output is kept.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Programs at a time, unless `QUORATE_TEST_LANES` says otherwise.
const LANES: usize = 2;
/// How long one program may take. The longest needs three minutes.
const LIMIT: Duration = Duration::from_secs(20 * 60);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// One program of tests.
struct Program {
    name: String,
    file: PathBuf,
    /// The folder of its package, where it is run.
    package: PathBuf,
    /// The first seed of simulated runs.
    seed: String,
}

/// How a program ended.
struct Ended {
    name: String,
    passed: usize,
    /// Tests that failed.
    failed: Vec<String>,
    /// Whether the program itself says that all is well.
    good: bool,
    took: Duration,
    log: PathBuf,
}

/// Builds and runs them; `names`: only these programs.
pub(crate) fn run(root: &Path, names: &[String]) -> Result<String> {
    let began = Instant::now();
    let seed = simulated_from();
    let programs = built(root, names, &seed)?;
    let logs = root.join("target/test-logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make `{}`", logs.display()))?;
    let lanes = std::env::var("QUORATE_TEST_LANES").ok().and_then(|lanes| lanes.parse().ok()).unwrap_or(LANES);
    say(&format!("{} programs of tests, {lanes} at a time; output in {}", programs.len(), logs.display()));
    say(&format!("simulated runs begin with seed {seed}; `QUORATE_SIM_SEED={seed} make test` repeats them"));
    let ended = side_by_side(&programs, lanes, &logs)?;
    let mut passed: usize = ended.iter().map(|one| one.passed).sum();
    let (mut second, mut bad) = (Vec::new(), Vec::new());
    for one in ended.iter().filter(|one| !one.good) {
        let Some(program) = programs.iter().find(|program| program.name == one.name) else { continue };
        say(&format!("{}: once more, alone: {}", one.name, one.failed.join(" ")));
        let again = program.run(&logs, &one.failed)?;
        again.tell()?;
        let tests = if one.failed.is_empty() { vec!["all".to_owned()] } else { one.failed.clone() };
        passed += again.passed;
        let list = if again.good { &mut second } else { &mut bad };
        list.extend(tests.iter().map(|test| format!("{}: {test}", one.name)));
    }
    if names.is_empty() {
        let status = Command::new(cargo()).args(["test", "--workspace", "--locked", "--doc", "--quiet"]).status();
        ensure!(status.context("cannot run cargo")?.success(), "an example in the source does not hold");
    }
    if !second.is_empty() {
        say(&format!("failed beside another program and passed alone:\n  {}", second.join("\n  ")));
    }
    if !bad.is_empty() {
        bail!("failed twice:\n  {}\ntests: {passed} passed, {} failed", bad.join("\n  "), bad.len());
    }
    say(&format!("took {} s", began.elapsed().as_secs()));
    Ok(format!("tests: {passed} passed, 0 failed"))
}

#[expect(clippy::print_stdout, reason = "a chore talks to the developer at the terminal")]
fn say(what: &str) {
    println!("test: {what}");
}

/// The first seed of simulated runs: other ones each time, unless `QUORATE_SIM_SEED` says which. Chosen once for all programs, since
/// one that found a violation has to find it again when it is run alone.
fn simulated_from() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    std::env::var("QUORATE_SIM_SEED").unwrap_or_else(|_| (since.as_secs() * 10_000).to_string())
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Builds all programs of tests, and lists them: those of the command line, which take longest, first.
fn built(root: &Path, names: &[String], seed: &str) -> Result<Vec<Program>> {
    let output = Command::new(cargo())
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let (Some(file), Some(manifest), Some(target)) =
            (message["executable"].as_str(), message["manifest_path"].as_str(), message["target"]["name"].as_str())
        else {
            continue;
        };
        if message["profile"]["test"] != true {
            continue;
        }
        let package = Path::new(manifest).parent().context("a manifest is in a folder")?.to_owned();
        let folder = package.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name = format!("{folder}/{target}");
        if names.is_empty() || names.iter().any(|wanted| wanted == target || *wanted == name) {
            programs.push(Program { name, file: PathBuf::from(file), package, seed: seed.to_owned() });
        }
    }
    ensure!(!programs.is_empty(), "no program of tests has that name");
    programs.sort_by_key(|program| (!program.name.starts_with("cli/"), program.name.clone()));
    Ok(programs)
}

fn side_by_side(programs: &[Program], lanes: usize, logs: &Path) -> Result<Vec<Ended>> {
    let waiting: Mutex<VecDeque<&Program>> = Mutex::new(programs.iter().collect());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.pop_front());
    let lane = || -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        while let Some(program) = next() {
            let one = program.run(logs, &[])?;
            one.tell()?;
            ended.push(one);
        }
        Ok(ended)
    };
    let ended = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes.max(1)).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| bail!("a lane ended early"))).collect::<Vec<_>>()
    });
    Ok(ended.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

impl Program {
    /// Runs it to its end; `only`: these tests, and one at a time.
    fn run(&self, logs: &Path, only: &[String]) -> Result<Ended> {
        let end = if only.is_empty() { "log" } else { "alone.log" };
        let log = logs.join(format!("{}.{end}", self.name.replace('/', "-")));
        let out = File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
        let began = Instant::now();
        let mut command = Command::new(&self.file);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package).stdin(Stdio::null());
        command.env("QUORATE_SIM_SEED", &self.seed);
        if !only.is_empty() {
            command.args(["--exact", "--test-threads=1"]).args(only);
        }
        let status = to_its_end(command.stdout(out.try_clone()?).stderr(out))
            .with_context(|| format!("cannot run `{}`", self.file.display()))?;
        let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        let mut failed: Vec<String> = Vec::new();
        for line in text.lines() {
            if let Some(test) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
                failed.push(test.to_owned());
            }
        }
        let passed = text.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok")).count();
        let good = status.is_some_and(|status| status.success());
        Ok(Ended { name: self.name.clone(), passed, failed, good, took: began.elapsed(), log })
    }
}

/// `None`: it took too long and was killed.
fn to_its_end(command: &mut Command) -> std::io::Result<Option<ExitStatus>> {
    let mut child = command.spawn()?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

impl Ended {
    fn tell(&self) -> Result<()> {
        let took = self.took.as_secs_f64();
        if self.good {
            say(&format!("{took:6.1} s  {}: {} passed", self.name, self.passed));
            return Ok(());
        }
        let text = String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned();
        say(&format!("{took:6.1} s  {}: {} passed, {} FAILED\n{text}", self.name, self.passed, self.failed.len()));
        Ok(())
    }
}
