//! The rows about the place of the data: a file system that is not mounted, another one in its place, and half a member.
//!
//! **Invariant:** an empty directory is a lost disk only where the file system that held the data is mounted, or where another one
//! is; and the only member is never restored over what may still be there.

use quorate_faults::Code;

use super::guards::{Guard, Guards};
use super::halts::{refuse, refuse_losing, wait};
use super::rows::Case;
use super::{PlaceState, Row, StartPlan, Step};
use crate::ledger::State;

impl<G: Guards> Case<'_, G> {
    /// Nothing is known of data whose file system is not mounted.
    pub(super) fn not_mounted(&self) -> Option<StartPlan> {
        let declared = self.spec.member(self.name).is_some();
        let gone = matches!(&self.ledger.state, State::Tombstone(stone) if !(stone.undeclared && declared));
        if gone || !self.guards.hold(Guard::SameFileSystem) {
            return None;
        }
        let steps = match &self.seen.place {
            PlaceState::NotCompared | PlaceState::Same | PlaceState::OtherFileSystem { .. } => return None,
            PlaceState::NotMounted { dir, mount_point, fs_type } => {
                let why = format!("`{dir}` is empty, and the {fs_type} file system at `{mount_point}` is not mounted");
                let way_out =
                    format!("`mount {mount_point}`, and see /etc/fstab; the agent continues once it is mounted");
                wait(Code::DataNotMounted, why, &way_out)
            }
            PlaceState::Unknown(why) => {
                let why = format!("cannot tell whether the file system of the data is mounted: {why}");
                wait(Code::DataNotMounted, why, "what cannot be seen is not taken for empty")
            }
        };
        Some(StartPlan::new(Row::NotMounted, steps))
    }

    /// The only member is not restored on another file system before an operator accepts that its data is lost.
    pub(super) fn other_file_system(&self) -> Option<StartPlan> {
        let PlaceState::OtherFileSystem { dir, mount_point } = &self.seen.place else { return None };
        let accepted = self.ledger.accepted_empty.as_ref().is_some_and(|it| it.mount_point == *mount_point);
        if accepted || !self.guards.hold(Guard::SameFileSystem) {
            return None;
        }
        let why = format!(
            "`{dir}` is empty, and the file system at `{mount_point}` is not the one that held the data of the only member"
        );
        let way_out = "mount the right disk, and the agent continues; if it is lost: `quorate data accept-empty --yes`";
        let lost = "what was written since the newest backup";
        Some(StartPlan::new(Row::OtherFileSystem, refuse_losing(Code::DataElsewhere, why, lost, way_out)))
    }

    /// Half of the only member is not absent: what is left may be all that there is of the newest writes.
    pub(super) fn half_only(&self, what: &str) -> StartPlan {
        if self.ledger.archiving {
            // This agent was stopped between its two renames.
            return StartPlan::new(Row::SetAside, vec![Step::Archive]);
        }
        let why = format!("the data of the only member is not complete: {what}");
        let way_out = "bring the missing directory back; to restore the newest backup, rename the one that is left";
        StartPlan::new(Row::HalfOnly, refuse(Code::DataHalf, why, way_out))
    }
}
