//! Processes of the cluster file beside etcd: their order, hooks, health, restarts, stop and adoption, with real programs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_support::{Place, get};
use quorate_testkit::{Running, free_port, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// A member with these processes. Each line of `processes` is one of the section.
fn place(processes: &str) -> Place {
    let mut place = Place::new("3.5.16");
    place.more = format!("processes:\n{processes}");
    place
}

fn row(place: &Place, name: &str) -> Value {
    let status = place.status();
    let rows = status["processes"].as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["name"] == name).unwrap_or(Value::Null)
}

/// Waits until a process is what it should be, and returns its row.
#[track_caller]
fn wait_row(place: &Place, agent: &Running, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let start = std::time::Instant::now();
    while !is(&last) {
        assert!(start.elapsed() < LIMIT, "{name} is not {what}: {last}\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(20));
        last = row(place, name);
    }
    last
}

#[track_caller]
fn wait_state(place: &Place, agent: &Running, name: &str, state: &str) -> Value {
    wait_row(place, agent, name, state, |row| row["state"] == state)
}

#[expect(clippy::disallowed_methods, reason = "nothing here has to survive a power cut")]
fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    std::fs::rename(from, to).unwrap();
}

fn touch(path: &Path) {
    std::fs::File::create(path).unwrap();
}

/// Whether a process with this word in its command line lives.
fn lives(word: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.any(|pid| {
        let mut line = Vec::new();
        let read = std::fs::File::open(format!("/proc/{pid}/cmdline")).and_then(|mut file| file.read_to_end(&mut line));
        read.is_ok() && line.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    })
}

/// A directory that a process, whoever it runs as, may look into.
fn open_dir(place: &Place, name: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let dir = place.path(name);
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn each_waits_for_what_it_needs_and_ends_before_it() {
    let mut place = place("");
    let flags = open_dir(&place, "flags");
    let (dir, port) = (flags.display(), free_port());
    let proxy = format!("defaults\n  mode tcp\n  timeout client 1s\nfrontend web\n  bind 127.0.0.1:{port}\n");
    std::fs::File::create(flags.join("haproxy.cfg")).unwrap().write_all(proxy.as_bytes()).unwrap();
    place.more = format!(
        "processes:
  web:
    executable: /usr/sbin/haproxy
    args: [-db, -f, {dir}/haproxy.cfg]
    volumes: [{{path: {dir}}}]
    ports: {{bind: {port}}}
    syscalls: {{deny: [symlink], allow: [seccomp]}}
    health: {{tcp: '127.0.0.1:{port}', every: 100ms}}
  app: {{executable: /usr/bin/sleep, args: ['86399'], after: [store, etcd]}}
  store:
    executable: /usr/bin/sleep
    args: ['86398']
    volumes: [{{path: {dir}}}]
    health: {{exec: [/usr/bin/test, -e, {dir}/well], every: 100ms}}
"
    );
    let mut agent = place.start();
    // It runs and is not well, so the other one waits.
    wait_state(&place, &agent, "store", "running");
    let app = wait_row(&place, &agent, "app", "waiting for the store alone", |row| {
        row["cause"].as_str().is_some_and(|cause| cause == "it waits until store is ready")
    });
    assert_eq!((&app["state"], &app["code"], &app["pid"]), (&"waiting".into(), &"Q1111".into(), &Value::Null), "{app}");
    touch(&flags.join("well"));
    let app = wait_state(&place, &agent, "app", "ready");
    let store = wait_state(&place, &agent, "store", "ready");
    assert!(app["started_ms"].as_u64() >= store["since_ms"].as_u64(), "{app} {store}");
    let level = if rustix::process::geteuid().is_root() { "strict" } else { "basic" };
    assert_eq!((&app["box"], &store["box"]), (&level.into(), &level.into()));
    // A real proxy, with a list of system calls of its own.
    assert_eq!(wait_state(&place, &agent, "web", "ready")["box"], level);
    let explained = place.quorate(&["box", "explain", "web"]);
    let explained = String::from_utf8(explained.stdout).unwrap();
    assert!(explained.contains("only those of the list `default`, with seccomp, without symlink (271)"), "{explained}");
    // In reverse, etcd last.
    assert!(agent.stop().success(), "{}", agent.log());
    let log = agent.log();
    let ends = ["process=\"app\"", "process=\"store\"", "etcd stopped as asked"]
        .map(|word| log.lines().position(|line| line.contains("stopped as asked") && line.contains(word)));
    assert!(ends.iter().all(Option::is_some) && ends.is_sorted(), "{ends:?}: {log}");
    assert!(!lives("86399") && !lives("86398"));
}

#[test]
fn variables_from_files_reach_the_process_and_no_file_of_the_agent() {
    let mut place = place("");
    let secret = place.path("password");
    std::fs::File::create(&secret).unwrap().write_all(b"geheim-2\n").unwrap();
    place.more = format!(
        "processes:\n  app:\n    executable: /usr/bin/sleep\n    args: ['86397']\n    env: {{PLAIN: offen}}\n    \
         env-files: {{PASSWORD: {}, MEMBER: '{}'}}\n",
        secret.display(),
        place.path("of-{name}").display(),
    );
    std::fs::File::create(place.path("of-n1")).unwrap().write_all(b"n1 itself").unwrap();
    let mut agent = place.start();
    let pid = wait_state(&place, &agent, "app", "ready")["pid"].as_u64().unwrap();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
    for variable in ["PLAIN=offen", "PASSWORD=geheim-2", "MEMBER=n1 itself"] {
        assert!(environment.contains(&variable.as_bytes()), "{variable}");
    }
    let mut dirs = vec![place.state()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                let text = String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned();
                assert!(!text.contains("geheim-2"), "{}", entry.path().display());
            }
        }
    }
    assert!(!agent.log().contains("geheim-2"), "{}", agent.log());
    // Without its file it is not started.
    rename(&secret, place.path("elsewhere"));
    quorate_testkit::kill_hard(u32::try_from(pid).unwrap());
    wait_row(&place, &agent, "app", "waiting for its variable", |row| row["pid"].is_null() && row["state"] != "ready");
    rename(place.path("elsewhere"), &secret);
    wait_state(&place, &agent, "app", "ready");
    assert!(agent.stop().success(), "{}", agent.log());
}

#[test]
fn ends_are_met_as_the_file_says() {
    let place = place(
        "  loops: {executable: /usr/bin/false, restart: {first-wait: 10ms, max-wait: 100ms}}
  done: {executable: /usr/bin/true, restart: {when: on-failure}}
  once: {executable: /usr/bin/false, restart: {when: never}}
  calm: {executable: /usr/bin/sleep, args: ['86397']}
",
    );
    let mut agent = place.start();
    let loops = wait_row(&place, &agent, "loops", "in a loop", |row| row["code"] == "Q1114");
    assert!(loops["restarts"].as_u64() >= Some(5), "{loops}");
    assert!(loops["cause"].as_str().is_some_and(|cause| cause.contains("in a row")), "{loops}");
    for (name, end) in [("done", "exit code 0"), ("once", "exit code 1")] {
        let row = wait_state(&place, &agent, name, "finished");
        assert!(row["last_end"].as_str().is_some_and(|how| how.contains(end)), "{row}");
        assert_eq!(row["restarts"], 1, "{row}");
    }
    let calm = wait_state(&place, &agent, "calm", "ready");
    assert_eq!(calm["restarts"], 0, "{calm}");
    // One that is killed comes back at once.
    let pid = calm["pid"].as_u64().unwrap();
    quorate_testkit::kill_hard(u32::try_from(pid).unwrap());
    let calm = wait_row(&place, &agent, "calm", "back", |row| row["state"] == "ready" && row["pid"] != pid);
    assert!(calm["last_end"].as_str().is_some_and(|how| how.contains("signal 9")), "{calm}");
    let (_, metrics) = place.health("/metrics").unwrap();
    for line in ["quorate_process_ready{process=\"calm\"} 1", "quorate_process_running{process=\"once\"} 0"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(agent.stop().success());
}

#[test]
fn hooks_decide_and_are_run_in_the_box() {
    let mut place = place("");
    let dir = place.path("volume");
    let dir = dir.display();
    place.more = format!(
        "processes:
  never: {{executable: /usr/bin/sleep, args: ['86396'], hooks: {{pre-start: [/usr/bin/false]}}, restart: {{max-wait: 1s}}}}
  late: {{executable: /usr/bin/sleep, args: ['86395'], hooks: {{post-start: [/usr/bin/sleep, '86394'], timeout: 300ms}}, restart: {{when: never}}}}
  blind: {{executable: /usr/bin/sleep, args: ['86393'], hooks: {{pre-start: [/usr/bin/ls, {dir}]}}, restart: {{when: never}}}}
  good:
    executable: /usr/bin/sleep
    args: ['86392']
    volumes: [{{path: {dir}, access: write, create: true}}]
    hooks: {{pre-start: [/usr/bin/touch, {dir}/before], post-start: [/usr/bin/touch, {dir}/after], pre-stop: [/usr/bin/touch, {dir}/end]}}
"
    );
    let mut agent = place.start();
    let never =
        wait_row(&place, &agent, "never", "kept from starting", |row| row["code"] == "Q1112" || row["code"] == "Q1113");
    assert!(never["last_end"].as_str().is_some_and(|how| how.contains("`pre-start` of `never` failed")), "{never}");
    assert!(!lives("86396"));
    let late = wait_state(&place, &agent, "late", "finished");
    assert!(late["last_end"].as_str().is_some_and(|how| how.contains("took longer than 300ms")), "{late}");
    assert!(!lives("86394") && !lives("86395"));
    // What is no volume of it is not there for its hooks either.
    let blind = wait_state(&place, &agent, "blind", "finished");
    assert!(blind["last_end"].as_str().is_some_and(|how| how.contains("`pre-start` of `blind` failed")), "{blind}");
    wait_state(&place, &agent, "good", "ready");
    let made = |name: &str| place.path("volume").join(name).exists();
    assert!(made("before") && made("after") && !made("end"));
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(made("end"));
    assert!(!lives("86392"));
}

#[test]
fn who_does_not_listen_is_ended_with_all_that_it_started() {
    let place = place(
        "  deaf:
    executable: /usr/bin/sh
    args: [-c, \"trap '' TERM; sleep 86391 & echo listening; wait\"]
    volumes: [{path: /usr/bin, access: execute}]
    stop: {term-timeout: 200ms}
",
    );
    let mut agent = place.start();
    wait_state(&place, &agent, "deaf", "ready");
    let said = || {
        let output = place.quorate(&["logs", "deaf"]);
        String::from_utf8_lossy(&output.stdout).contains("listening")
    };
    wait_until("it has set its trap", LIMIT, said);
    assert!(lives("86391"));
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(agent.log().contains("killed:"), "{}", agent.log());
    assert!(!lives("86391"));
}

#[test]
fn the_next_agent_finds_them_and_follows_the_file() {
    let mut place = place("");
    let more = |seconds: &str, dir: &Path| {
        format!(
            "processes:
  stays: {{executable: /usr/bin/sleep, args: ['86390'], volumes: [{{path: {0}, access: write, create: true}}], hooks: {{post-start: [/usr/bin/touch, {0}/run]}}}}
  changes: {{executable: /usr/bin/sleep, args: ['{seconds}']}}
  goes: {{executable: /usr/bin/sleep, args: ['86387']}}
",
            dir.display()
        )
    };
    let dir = place.path("volume");
    place.more = more("86389", &dir);
    let mut agent = place.start();
    let pids = |place: &Place, agent: &Running| {
        ["stays", "changes"].map(|name| wait_state(place, agent, name, "ready")["pid"].clone())
    };
    let before = pids(&place, &agent);
    wait_state(&place, &agent, "goes", "ready");
    agent.kill();
    rename(dir.join("run"), dir.join("ran"));
    assert!(lives("86390") && lives("86389"));
    // The same file: the very same processes, and no hook is run again.
    let mut agent = place.start();
    assert_eq!(pids(&place, &agent), before);
    assert!(!dir.join("run").exists());
    agent.kill();
    // Another file: what changed is started anew, what is gone is ended, the rest goes on.
    place.more =
        more("86388", &dir).lines().filter(|line| !line.contains("goes:")).map(|line| format!("{line}\n")).collect();
    let mut agent = place.start();
    let after = pids(&place, &agent);
    assert_eq!(after[0], before[0]);
    assert_ne!(after[1], before[1]);
    wait_until("what is not declared is ended", LIMIT, || !lives("86387"));
    assert!(!lives("86389") && lives("86388"));
    // Without an agent they are stopped together with etcd.
    agent.kill();
    let stopped = place.quorate(&["stop"]);
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert!(!lives("86388") && !lives("86390"));
}

/// A copy of our program, put where the one before was, as packages are upgraded: another file under the same name.
fn upgrade(place: &Place) -> PathBuf {
    let (program, new) = (place.path("quorate"), place.path("quorate.new"));
    // Another process copies: a file that this one writes could be held open by what another thread just starts.
    let copied = std::process::Command::new("cp").arg(quorate_testkit::quorate()).arg(&new).status().unwrap();
    assert!(copied.success());
    rename(&new, &program);
    program
}

#[test]
fn another_agent_under_the_same_name_takes_all_of_them_over() {
    let place = place(
        "  beside:
    executable: /usr/bin/sh
    args: [-c, \"trap 'echo over; exit 0' TERM; echo begun; while :; do sleep 0.1; done\"]
    volumes: [{path: /usr/bin, access: execute}]
",
    );
    let file = place.file().display().to_string();
    let words: Vec<String> = ["run", "--config", &file].map(str::to_owned).to_vec();
    let mut agent = Running::start(&upgrade(&place), &words, &place.env);
    place.wait_ready(&mut agent);
    let before = wait_state(&place, &agent, "beside", "ready");
    let etcd = place.etcd_pid();
    agent.kill();
    // The shims go on as what they were started as; the next agent is another program to look at.
    let mut agent = Running::start(&upgrade(&place), &words, &place.env);
    place.wait_ready(&mut agent);
    let after = wait_state(&place, &agent, "beside", "ready");
    assert_eq!((&after["pid"], &after["restarts"], place.etcd_pid()), (&before["pid"], &0.into(), etcd), "{after}");
    assert_eq!((&after["box"], &place.status()["etcd"]["adopted"]), (&before["box"], &true.into()), "{after}");
    let rows = place.json(&["ps"])["processes"].as_array().cloned().unwrap();
    assert_eq!(rows.len(), 2, "{rows:?}");
    // Their shims are heard and hear: the end is an orderly one, in the log and in the record.
    assert!(agent.stop().success(), "{}", agent.log());
    let said = place.quorate(&["logs", "beside"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("begun") && said.contains("over"), "{said}");
    let log = agent.log();
    let orderly = |word: &str| log.lines().any(|line| line.contains("stopped as asked") && line.contains(word));
    assert!(orderly("process=\"beside\"") && orderly("etcd stopped as asked"), "{log}");
}

#[test]
fn a_web_server_serves_in_its_box_and_is_replaced_when_it_is_not_well() {
    let (port, mut place) = (free_port(), place(""));
    let dir = open_dir(&place, "web");
    std::fs::File::create(dir.join("page")).unwrap().write_all(b"hello").unwrap();
    touch(&dir.join("well"));
    let shown = dir.display();
    place.more = format!(
        "processes:
  web:
    executable: /usr/bin/python3
    args: [-m, http.server, '{port}', --bind, 127.0.0.1, --directory, {shown}]
    volumes: [{{path: {shown}}}]
    ports: {{bind: [{port}]}}
    limits: {{pids: 32, memory: 512MiB}}
    health: {{http: 'http://127.0.0.1:{port}/well', every: 50ms, timeout: 30s, failures: 2}}
    restart: {{first-wait: 10ms, max-wait: 100ms}}
"
    );
    let mut agent = place.start();
    let first = wait_state(&place, &agent, "web", "ready");
    assert_eq!(get(port.number(), "/page"), Some((200, "hello".to_owned())));
    assert_eq!(get(port.number(), "/../../../etc/passwd").map(|(code, _)| code), Some(404));
    // Its health is what it says of it.
    rename(dir.join("well"), dir.join("ill"));
    let gone = wait_row(&place, &agent, "web", "replaced", |row| row["restarts"].as_u64() > Some(0));
    assert!(gone["last_end"].as_str().is_some_and(|how| how.contains("answers 404")), "{gone}");
    rename(dir.join("ill"), dir.join("well"));
    let again =
        wait_row(&place, &agent, "web", "ready again", |row| row["state"] == "ready" && row["pid"] != first["pid"]);
    assert!(again["pid"].is_u64(), "{again}");
    assert_eq!(get(port.number(), "/page"), Some((200, "hello".to_owned())));
    let logged = place.quorate(&["logs", "web"]);
    assert!(
        String::from_utf8_lossy(&logged.stdout).contains("GET /page"),
        "{}",
        String::from_utf8_lossy(&logged.stderr)
    );
    assert!(agent.stop().success());
    assert_eq!(get(port.number(), "/page"), None);
}
