//! The cluster files that operators hand out: the first one, one with an edit that does not matter, later foundings, and another
//! declaration under the same number.

use std::rc::Rc;

use quorate_plan::spec::Spec;

/// A cluster file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) words: String,
    pub(crate) hash: String,
    pub(crate) spec: Spec,
}

/// What operators choose from.
pub(crate) const FIRST: usize = 0;
pub(crate) const UNRELATED: usize = 1;
pub(crate) const SECOND: usize = 2;
pub(crate) const OTHER: usize = 3;
pub(crate) const THIRD: usize = 4;
pub(crate) const UNDECLARED: usize = 5;

/// All of them, for so many members.
pub(crate) fn all(members: usize) -> Vec<Rc<File>> {
    let file = |words: &str, bootstrap: &str, more: &str, moved: bool| {
        let mut text = format!("token: t\nplaintext: true\n{bootstrap}{more}members:\n");
        for number in 1..=members {
            let net = if moved && number == members { 1 } else { 0 };
            text += &format!("  - {{name: n{number}, address: 10.0.{net}.{number}}}\n");
        }
        parse(words.to_owned(), &text)
    };
    let edit = "etcd: {snapshot-count: 5000}\n";
    vec![
        file("founding 1", "bootstrap: {id: 1}\n", "", false),
        file("founding 1, and an edit that does not matter", "bootstrap: {id: 1}\n", edit, false),
        file("founding 2", "bootstrap: {id: 2}\n", "", false),
        file("founding 1 with another address of the last member", "bootstrap: {id: 1}\n", "", true),
        file("founding 3", "bootstrap: {id: 3}\n", "", false),
        file("no founding", "", "", false),
    ]
}

/// A file that declares these nodes (counted from 0), in a cluster that is there.
pub(crate) fn declaring(nodes: &[usize], addresses: &[u8], founding: bool, number: u32) -> Rc<File> {
    let bootstrap = if founding { "bootstrap: {id: 1}\n" } else { "" };
    let edit = format!("etcd: {{snapshot-count: {}}}\n", 1000 + number);
    let mut text = format!("token: t\nplaintext: true\n{bootstrap}{edit}backup: {{store: \"file:///b\"}}\nmembers:\n");
    for node in nodes {
        text += &format!("  - {{name: n{0}, address: 10.0.{1}.{0}}}\n", node + 1, addresses[*node]);
    }
    let place = |node: &usize| if addresses[*node] == 0 { String::new() } else { format!("@{}", addresses[*node]) };
    let names: Vec<String> = nodes.iter().map(|node| format!("n{}{}", node + 1, place(node))).collect();
    parse(format!("file {number}: {}", names.join(" ")), &text)
}

/// The texts are fixed; whatever is wrong with one is wrong with every life.
fn parse(words: String, text: &str) -> Rc<File> {
    match Spec::parse(text.as_bytes(), "simulated").map_err(|mistakes| mistakes.render()) {
        Ok((spec, _)) => Rc::new(File { words, hash: spec.hash(), spec }),
        Err(mistakes) => unreachable!("{mistakes}"),
    }
}
