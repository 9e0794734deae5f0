//! An etcd that refused its settings is tried again once its program or a file that it reads has changed.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot continue names the place")]

mod agent_support;

use std::path::Path;

use agent_support::{LIMIT, Place};
use quorate_testkit::{copy_program, etcd, wait_until};

/// Puts a program in the place of another one, in one step.
fn replace(of: &Path, to: &Path) {
    let new = to.with_extension("new");
    copy_program(of, &new);
    std::fs::rename(&new, to).unwrap();
}

/// What etcd has logged so far.
fn etcd_log(place: &Place) -> String {
    let files = std::fs::read_dir(place.state().join("logs")).unwrap().flatten();
    files.map(|file| String::from_utf8_lossy(&std::fs::read(file.path()).unwrap_or_default()).into_owned()).collect()
}

#[test]
fn an_etcd_that_refused_its_settings_is_tried_again_when_program_or_files_change() {
    let mut place = Place::new("3.5.16");
    place.binary = place.path("etcd");
    replace(&place.tools.etcd, &place.binary);
    let (public, private) = (place.path("jwt.pub"), place.path("jwt.key"));
    let token = format!("jwt,pub-key={},priv-key={},sign-method=ES256", public.display(), private.display());
    place.more = format!(
        "etcd: {{heartbeat-interval: 10, election-timeout: 100, auth-token: \"{token}\"}}\nbox: {{level: \"off\"}}\n"
    );
    let mut agent = place.run(&[]);
    let status = place.wait_phase("refused");
    assert_eq!(status["code"], "Q0919", "{status}");
    assert!(!etcd_log(&place).contains("3.5.30"));
    // Another release: the agent tries it by itself. The files are still missing, so it is refused again.
    replace(&etcd("3.5.30").etcd, &place.binary);
    wait_until("a start of the other release", LIMIT, || etcd_log(&place).contains("3.5.30"));
    assert_eq!(place.wait_phase("refused")["code"], "Q0919");
    // Without a change, no start repeats.
    let starts = || etcd_log(&place).matches("\"failed to start etcd\"").count();
    let before = starts();
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&public, key.public_key_pem()).unwrap();
    assert_eq!(starts(), before);
    std::fs::write(&private, key.serialize_pem()).unwrap();
    place.wait_ready(&mut agent);
    place.put("k", "v");
    assert!(agent.log().contains("etcd's program or a file that it reads has changed"), "{}", agent.log());
    assert!(agent.stop().success());
}
