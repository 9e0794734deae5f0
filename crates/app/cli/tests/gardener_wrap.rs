//! `quorate wrap` with a real etcd, beside a sidecar that follows a script: what is asked, in which order, and what every
//! answer leads to.

mod gardener_support;

use std::process::Command;

use gardener_support::{LIMIT, Pod, Say, Script, ask, false_etcd, mode_of, wait_end};
use quorate_testkit::{quorate, wait_until};
use rustix::process::Signal;

fn answer(code: u16, body: &str) -> Say {
    Say::Answer(code, body.to_owned())
}

#[test]
fn the_handshake_is_followed_to_the_letter_whatever_comes_back() {
    let pod = Pod::new("3.5.16");
    // Nobody listens yet.
    let mut wrap = pod.wrap(&[]);
    wait_until("wrap to have asked in vain", LIMIT, || wrap.log().contains("does not answer"));
    let config = pod.etcd_config();
    let served = config.clone();
    let (mut statuses, mut configs) = (0, 0);
    let script = Script::start(pod.sidecar.number(), move |line| match line {
        "GET /initialization/status" => {
            statuses += 1;
            match statuses {
                1 => answer(200, "\u{fffd}garbage\0"),
                2 => answer(208, "New"),
                3 => answer(200, "New"),
                4 => answer(200, "Failed"),
                5 => answer(201, "New"),
                _ => answer(202, "Successful"),
            }
        }
        "GET /config" => {
            configs += 1;
            match configs {
                1 => answer(500, ""),
                2 => Say::Nothing,
                _ => answer(200, &served),
            }
        }
        _ => answer(200, ""),
    });
    assert_eq!(ask("GET", pod.wrapper.number(), "/readyz"), None, "nothing answers before etcd is configured");
    pod.wait_ready(&mut wrap);
    let (status, start) = ("GET /initialization/status", "GET /initialization/start?mode=full");
    assert_eq!(
        script.asked(),
        [status, status, status, start, status, status, start, status, "GET /config", "GET /config", "GET /config"]
    );
    let written = pod.path("home/etcd.conf.yaml");
    assert_eq!(std::fs::read_to_string(&written).unwrap(), config, "the configuration is kept as it came");
    assert_eq!(mode_of(&written), 0o600);
    assert_eq!(mode_of(&pod.data_dir().join("member/snap/db")), 0o600);
    assert_eq!(pod.ctl(&["put", "a", "b"]).trim(), "OK");
    assert_eq!(wrap.stop().code(), Some(0));
    assert_eq!(pod.exit_code().as_deref(), Some("terminated"));
}

#[test]
fn how_etcd_ended_decides_how_it_is_validated() {
    let pod = Pod::new("3.4.23");
    let script = Script::content(pod.sidecar.number(), pod.etcd_config());
    let start = |mode: &str| format!("GET /initialization/start?mode={mode}");
    pod.write("data/validation_marker", "full");
    let mut wrap = pod.wrap(&[]);
    pod.wait_ready(&mut wrap);
    assert!(!pod.path("data/validation_marker").exists());
    // Somebody asks on the door: an end in order, written down after it.
    let port = pod.wrapper.number();
    assert_eq!(ask("GET", port, "/stop").unwrap().code, 405);
    assert_eq!(ask("PUT", port, "/stop").unwrap().code, 405);
    assert!(wrap.ended().is_none());
    assert_eq!(ask("HEAD", port, "/readyz").unwrap().code, 200, "any method asks");
    assert_eq!(ask("POST", port, "/stop").unwrap().code, 200);
    assert_eq!(wait_end(&mut wrap), Some(0));
    assert_eq!(pod.exit_code().as_deref(), Some("terminated"));
    // The next start is quick, and uses the word up; an interrupt is an end in order, too.
    let mut wrap = pod.wrap(&[]);
    pod.wait_ready(&mut wrap);
    assert_eq!(pod.exit_code(), None);
    // With users, the probe is turned down for who it is, which takes a quorum as well.
    for words in [&["user", "add", "root:secret"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]] {
        let _ = pod.tools.try_ctl(&pod.seat.client_url(), &["role", "add", "root"]);
        pod.ctl(words);
    }
    wrap.signal(Signal::INT);
    assert_eq!(wait_end(&mut wrap), Some(0));
    assert_eq!(pod.exit_code().as_deref(), Some("interrupt"));
    let mut wrap = pod.wrap(&[]);
    pod.wait_ready(&mut wrap);
    // Killed: etcd goes with it, nothing is written, and everything is validated.
    wrap.kill();
    wait_until("etcd to be gone", LIMIT, || {
        std::net::TcpStream::connect(pod.seat.client_url().replace("http://", "")).is_err()
    });
    assert_eq!(pod.exit_code(), None);
    let mut wrap = pod.wrap(&[]);
    pod.wait_ready(&mut wrap);
    assert_eq!(script.starts(), [start("full"), start("sanity"), start("sanity"), start("full")]);
    wrap.kill();
}

#[test]
fn only_an_end_in_order_of_an_etcd_that_served_is_written_down() {
    let pod = Pod::new("3.5.16");
    let _script = Script::content(pod.sidecar.number(), pod.etcd_config());
    let started = |wrap: &quorate_testkit::Running| wrap.log().contains("started etcd");
    // It ended by itself.
    let mut wrap = pod.wrap(&[false_etcd(&pod, "exit 3")]);
    assert_eq!((wait_end(&mut wrap), pod.exit_code()), (Some(0), None));
    // It never served.
    let mut wrap = pod.wrap(&[false_etcd(&pod, "exec sleep 60")]);
    wait_until("etcd to be started", LIMIT, || started(&wrap));
    assert_eq!((wrap.stop().code(), pod.exit_code()), (Some(0), None));
    // It does not end, and a second signal is not patient.
    let mut wrap = pod.wrap(&[false_etcd(&pod, "trap '' TERM; echo deaf; while :; do sleep 0.1; done")]);
    wait_until("etcd to be deaf", LIMIT, || started(&wrap) && wrap.log().contains("deaf"));
    wrap.signal(Signal::TERM);
    wait_until("etcd to be asked", LIMIT, || wrap.log().contains("stopping etcd"));
    wrap.signal(Signal::TERM);
    assert_eq!((wait_end(&mut wrap), pod.exit_code()), (Some(1), None));
}

#[test]
fn a_signal_before_etcd_leaves_the_word_of_the_last_end() {
    let pod = Pod::new("3.5.16");
    let script = Script::start(pod.sidecar.number(), |_| answer(200, "Progress"));
    pod.write("data/exit_code", "terminated");
    let mut wrap = pod.wrap(&[]);
    wait_until("wrap to wait", LIMIT, || !script.asked().is_empty());
    assert_eq!(wrap.stop().code(), Some(0));
    assert_eq!(pod.exit_code().as_deref(), Some("terminated"));
}

#[test]
fn what_cannot_be_used_ends_it_with_one() {
    let pod = Pod::new("3.5.16");
    let said = |words: &[&str]| {
        let output = Command::new(quorate()).arg("wrap").args(words).env("HOME", pod.root.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for words in [&[][..], &["stop-etcd"]] {
        let (code, text) = said(words);
        assert!(code == Some(1) && text.contains("--backup-restore-host-port"), "{code:?} {text}");
    }
    for flag in ["--no-such", "--backup-restore-host-port=http://a:1", "--backup-restore-tls-enabled"] {
        let (code, text) = said(&["start-etcd", flag]);
        assert!(code == Some(1) && text.contains("Q0990"), "{code:?} {text}");
    }
    let _script = Script::content(pod.sidecar.number(), "- no: [configuration".to_owned());
    let mut wrap = pod.wrap(&[]);
    assert_eq!(wait_end(&mut wrap), Some(1));
    assert!(wrap.log().contains("Q0992"), "{}", wrap.log());
}
