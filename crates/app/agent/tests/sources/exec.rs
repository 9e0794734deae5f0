//! Programs that print lists, and programs that do not.

use std::time::{Duration, Instant};

use quorate_agent::sources::{Pace, SourceOptions, gather_at, open};
use quorate_testkit::wait_until;

use super::{ask, block_on, refusal, shown};

fn run(uri: &str) -> String {
    match ask(uri, &SourceOptions::default()) {
        Ok(roster) => shown(&roster),
        Err(fault) => super::words(&fault),
    }
}

#[test]
fn a_program_prints_the_list_without_a_shell() {
    assert_eq!(run("exec:printf 'n1: %s' http://a:1"), "n1=http://a:1");
    // No shell: the variable is a word like any other, and as a host it cannot be resolved.
    assert_eq!(
        run("exec:echo 'n1: http://$HOME:1'"),
        "Q0109 cannot use peer URL `http://$HOME:1` of member `n1`: its host contains `$`, which cannot be resolved, in the \
         list from `exec:echo` -> use letters, digits, `-`, `_` and `.`; write international names in their `xn--` form"
    );
}

#[test]
fn a_shell_reads_the_command_only_when_asked_for() {
    assert_eq!(run("exec+shell:h=a; echo \"n1: http://$h:1\" | cat"), "n1=http://a:1");
}

#[test]
fn a_program_that_fails_is_unreachable_and_its_words_are_shown() {
    assert_eq!(
        run("exec+shell:echo 'n1: http://a:1'; echo first >&2; echo 'no token' >&2; exit 3"),
        "Q0102 no list from `exec+shell:`: it ended with exit code 3 <- it wrote: first; no token -> \
         run it by hand; it must print the list and end with 0"
    );
    assert_eq!(
        run("exec:false"),
        "Q0102 no list from `exec:false`: it ended with exit code 1 -> run it by hand; it must print the list and end with 0"
    );
    assert_eq!(
        run("exec+shell:kill -9 $$"),
        "Q0102 no list from `exec+shell:`: it was killed -> run it by hand; it must print the list and end with 0"
    );
    assert_eq!(
        run("exec:/nowhere/list --secret=x"),
        "Q0102 no list from `exec:/nowhere/list`: there is no such program <- No such file or directory (os error 2) -> \
         give its full path; say `exec+shell:` if a shell must read the command"
    );
}

#[test]
fn a_program_that_prints_nothing_gives_an_empty_list() {
    assert_eq!(
        run("exec:true"),
        "Q0104 the list from `exec:true` has no members -> list every founding member, or say `--expect N` to wait for them"
    );
}

#[test]
fn a_program_that_prints_too_much_is_stopped() {
    assert_eq!(
        run("exec:yes"),
        "Q0103 cannot read the list from `exec:yes`: it is longer than 1024 KiB -> \
         give the list alone: a cluster has 3 to 7 members"
    );
}

#[test]
fn only_the_end_of_a_long_complaint_is_shown() {
    let words = run("exec+shell:i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1");
    assert!(words.contains("it wrote: line 2995; line 2996; line 2997; line 2998; line 2999 ->"), "{words}");
}

#[test]
fn a_program_that_is_too_slow_is_killed_with_all_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let script = format!("exec+shell:sleep 600 & echo $! > {0}; echo $$ >> {0}; wait", pids.display());
    let source = open(&script, &SourceOptions::default()).unwrap();
    let pace = Pace { answer_within: Duration::from_millis(700), ask_every: Duration::from_millis(50) };
    let start = Instant::now();
    let result = block_on(gather_at(source.as_ref(), None, Duration::ZERO, pace, &mut |_| {}));
    assert_eq!(
        refusal(result),
        "Q0102 no list from `exec+shell:`: it did not answer within 700ms -> \
         see that it is up and that this host may reach it, then try again"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
    let started: Vec<String> = std::fs::read_to_string(&pids).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(started.len(), 2);
    wait_until("both processes are gone", Duration::from_secs(10), || started.iter().all(|pid| is_gone(pid)));
}

/// A killed process that nobody has waited for yet is gone, too.
fn is_gone(pid: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}
