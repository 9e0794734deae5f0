//! Chores of this workspace, run as `cargo xtask TASK`.
//!
//! **Rule:** a task changes nothing but its own output folder, and says what it found in words that name the place.

mod bench;
mod seeds;
mod sim;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK
  tidy         check the source tree: file heads and lengths, rings, fault pages, forbidden words, links
  bench [PART] run the side-by-side benchmarks, or one part: `offline`, `follow`, `agent`, `found`, `change`, `postgres`,
               `peers`, `box`, `dd` (see bench/)
  test [NAME]  build and run every test, two programs at a time, or those of NAMEs; what failed once more, alone
  fuzz-seeds   fill fuzz/corpus from the fixtures
  sim          live through simulated lives: `--seeds N [--from S]`, or `--seed S --story`";

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore talks to the developer at the terminal")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let root = quorate_testkit::project_root();
    let result = match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(&root),
        Some("bench") => bench::run(&root, args.get(1).map(String::as_str)),
        Some("test") => test::run(&root, args.get(1..).unwrap_or_default()),
        Some("fuzz-seeds") => seeds::run(&root),
        Some("sim") => sim::run(&args),
        _ => Err(anyhow::anyhow!("{USAGE}")),
    };
    match result {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
