//! Lists in files and on standard input.

use std::time::{Duration, Instant};

use quorate_agent::sources::{Pace, SourceOptions, gather_at, open};

use super::{ask, block_on, expect, refusal, shown};

fn plain() -> SourceOptions {
    SourceOptions::default()
}

#[expect(clippy::disallowed_methods, reason = "a test's own file need not survive a crash")]
fn write(path: &std::path::Path, text: impl AsRef<[u8]>) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn yaml_and_json_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("members.yaml");
    write(&path, "- name: n1\n  peer_urls: [https://10.0.0.1:2380]\n- name: n2\n  peer_url: https://10.0.0.2:2380\n");
    let roster = ask(&format!("file:{}", path.display()), &plain()).unwrap();
    assert_eq!(shown(&roster), "n1=https://10.0.0.1:2380 n2=https://10.0.0.2:2380");
    assert_eq!(roster.provenance, format!("file:{}", path.display()));
    write(&path, r#"{"members":[{"name":"n1","peerURLs":["https://10.0.0.1:2380"]}]}"#);
    assert_eq!(shown(&ask(&format!("file://{}", path.display()), &plain()).unwrap()), "n1=https://10.0.0.1:2380");
}

#[test]
fn a_file_that_is_not_there_is_unreachable_not_empty() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().display();
    assert_eq!(
        refusal(ask(&format!("file:{place}/none"), &plain())),
        format!(
            "Q0102 no list from `file:{place}/none`: there is no such file <- No such file or directory (os error 2) -> \
             check the path; it is relative to the working directory"
        )
    );
    assert_eq!(
        refusal(ask(&format!("file:{place}"), &plain())),
        format!(
            "Q0102 no list from `file:{place}`: it is a directory <- Is a directory (os error 21) -> name the file inside it"
        )
    );
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    write(&path, vec![b'#'; (1 << 20) + 1]);
    assert_eq!(
        refusal(ask(&format!("file:{}", path.display()), &plain())),
        format!(
            "Q0103 cannot read the list from `file:{}`: it is longer than 1024 KiB -> \
             give the list alone: a cluster has 3 to 7 members",
            path.display()
        )
    );
}

#[test]
fn a_pipe_that_nobody_writes_to_is_unreachable_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    quorate_testkit::run(std::process::Command::new("mkfifo").arg(&path));
    let source = open(&format!("file:{}", path.display()), &plain()).unwrap();
    let pace = Pace { answer_within: Duration::from_millis(300), ask_every: Duration::from_millis(50) };
    let start = Instant::now();
    let result = block_on(gather_at(source.as_ref(), None, Duration::ZERO, pace, &mut |_| {}));
    assert_eq!(
        refusal(result),
        format!(
            "Q0102 no list from `file:{}`: it did not answer within 300ms -> \
             see that it is up and that this host may reach it, then try again",
            path.display()
        )
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_file_that_grows_while_we_wait_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let uri = format!("file:{}", path.display());
    let source = open(&uri, &plain()).unwrap();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            std::thread::sleep(Duration::from_millis(400));
            write(&path, "n1: http://a:1\n");
            std::thread::sleep(Duration::from_millis(400));
            write(&path, "n1: http://a:1\nn2: http://b:1\n");
        }
    });
    let (result, said) = expect(source.as_ref(), 2, Duration::from_secs(20));
    writer.join().unwrap();
    assert_eq!(shown(&result.unwrap()), "n1=http://a:1 n2=http://b:1");
    assert_eq!(said.first().unwrap(), &format!("waiting for 2 members: no list from `{uri}`: there is no such file"));
    assert_eq!(said.last().unwrap(), &format!("1 of 2 members in `{uri}`: 1 member not seen yet (have `n1`)"));
}
