//! Lives through seeds of the simulated world: `cargo xtask sim --seeds 1000000`, and tells the story of one.
//!
//! **Rule:** a seed that breaks a rule is named together with the command that tells its story.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use quorate_sim::{End, Life, Settings, live};

/// How many broken seeds are named.
const NAMED: usize = 10;

#[derive(Default)]
struct Sum {
    serve: u64,
    wait: u64,
    plans: u64,
    broken: Vec<(u64, String)>,
    living: bool,
}

/// `--seeds N [--from S]`, or `--seed S [--story]`; `--living` for clusters that are there and are changed.
pub(crate) fn run(args: &[String]) -> Result<String> {
    let living = args.iter().any(|arg| arg == "--living");
    let settings = Settings { living, ..Settings::default() };
    let number = |flag: &str| -> Result<Option<u64>> {
        let Some(at) = args.iter().position(|arg| arg == flag) else { return Ok(None) };
        let text = args.get(at + 1).with_context(|| format!("`{flag}` needs a number"))?;
        Ok(Some(text.parse().with_context(|| format!("`{text}` is no number"))?))
    };
    if let Some(seed) = number("--seed")? {
        let life = live(seed, settings);
        let story = if args.iter().any(|arg| arg == "--story") { life.tell() } else { short(&life) };
        if life.broken.is_some() {
            bail!("{story}");
        }
        return Ok(story);
    }
    let (from, seeds) = (number("--from")?.unwrap_or(0), number("--seeds")?.unwrap_or(2000));
    let (begun, next) = (Instant::now(), AtomicU64::new(from));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let sums = std::thread::scope(|scope| {
        let worker = || {
            let mut sum = Sum::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= from.saturating_add(seeds) {
                    return sum;
                }
                sum.add(&live(seed, settings));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_default()).collect::<Vec<Sum>>()
    });
    let mut all = Sum::default();
    for sum in sums {
        (all.serve, all.wait, all.plans) = (all.serve + sum.serve, all.wait + sum.wait, all.plans + sum.plans);
        all.broken.extend(sum.broken);
    }
    all.living = living;
    all.tell((from, seeds), begun.elapsed().as_secs_f64())
}

impl Sum {
    fn add(&mut self, life: &Life) {
        self.plans += life.plans;
        match &life.end {
            End::Serves => self.serve += 1,
            End::NeedsPerson(_) => self.wait += 1,
            End::Broken => self.broken.push((life.seed, life.broken.clone().unwrap_or_default())),
        }
    }

    fn tell(mut self, (from, seeds): (u64, u64), seconds: f64) -> Result<String> {
        let (serve, wait) = (self.serve, self.wait);
        let kind = if self.living { " --living" } else { "" };
        let speed = self.plans as f64 / seconds.max(0.001);
        let said = format!(
            "{seeds} runs of seeds from {from}{kind} in {seconds:.1} s: {serve} serve, {wait} wait for an operator, {} break a rule; \
             {speed:.0} plans/s, world and all",
            self.broken.len()
        );
        if self.broken.is_empty() {
            return Ok(said);
        }
        self.broken.sort();
        let named = self.broken.iter().take(NAMED).map(|(seed, why)| {
            format!("\n  {}\n    cargo xtask sim --seed {seed}{kind} --story", why.lines().next().unwrap_or_default())
        });
        bail!("{said}{}", named.collect::<String>())
    }
}

fn short(life: &Life) -> String {
    let text = life.tell();
    let last = text.trim_end().lines().last().unwrap_or_default();
    format!("seed {}, {} lines, {} plans; {last}", life.seed, life.story.len(), life.plans)
}
