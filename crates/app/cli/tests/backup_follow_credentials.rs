//! A follower whose store's credentials are rotated while it works.

mod follow_support;

use follow_support::{Place, put_file, rename, revision, wait_log, write_some};
use quorate_testkit::{S3Key, s3_strict};

#[test]
fn new_keys_in_their_files_are_picked_up_before_and_after_the_old_ones_are_refused() {
    let strict = s3_strict();
    let mut place = Place::new();
    place.store = strict.s3.url("p");
    // One file each, as secrets are mounted.
    let rotate = |key: &S3Key, place: &Place| {
        for (name, text) in [("key-id", &key.id), ("secret", &key.secret)] {
            put_file(&place.path("new"), text);
            rename(&place.path("new"), &place.path(name));
        }
    };
    let (first, second) = (strict.key().clone(), strict.another_key());
    rotate(&first, &place);
    place.env = strict.env(true).into_iter().filter(|(name, _)| !name.contains("_KEY")).collect();
    for (variable, file) in [("AWS_ACCESS_KEY_ID_FILE", "key-id"), ("AWS_SECRET_ACCESS_KEY_FILE", "secret")] {
        place.env.push((variable.to_owned(), place.path(file).display().to_string()));
    }
    let server = place.etcd("3.5.16");
    let mut follower = place.follow(&server.seat.client_url(), "spool", &["--full-schedule", "every 1h"]);
    wait_log(&follower, "stored a full backup and read it back");
    // As it should be done: the new key first, then the old one goes.
    rotate(&second, &place);
    strict.revoke(&first);
    write_some(&server, "second");
    place.wait_stored(revision(&server));
    assert!(!follower.log().contains("Q0820"), "{}", follower.log());
    // As it happens: the old one has gone, and the new one comes when somebody notices.
    strict.revoke(&second);
    write_some(&server, "third");
    wait_log(&follower, "Q0820");
    let third = strict.another_key();
    rotate(&third, &place);
    place.wait_stored(revision(&server));
    assert!(follower.ended().is_none());
    assert!(follower.stop().success(), "{}", follower.log());
    place.assert_seamless();
    for key in [&first, &second, &third] {
        assert!(!follower.log().contains(&key.secret));
    }
    place.assert_equals(&server, "restored");
}
