//! `warren cluster key`: replaces the keys that encrypt what managers store, and shows how far that is. The managers do
//! that by themselves: the command begins it and watches.

use warren_proto::v1;

use super::rotation::{ShownProgress, wait_complete};
use crate::args::{GlobalArgs, KeySubcommand};
use crate::connect::connect;
use crate::failure::{CommandError, from_client};
use crate::output;
use crate::view::key::{KeyStatusView, progress_lines, progress_summary};

pub async fn run(global: &GlobalArgs, command: KeySubcommand) -> Result<(), CommandError> {
    match command {
        KeySubcommand::Status => status(global).await,
        KeySubcommand::Rotate { detach } => rotate(global, detach).await,
    }
}

async fn status(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "the keys of the cluster were not shown";
    let client = connect(global, what).await?;
    let status = client.cluster().keys().await.map_err(|error| from_client(what, error))?;
    output::print_document(global.output, &KeyStatusView::new(status))
}

async fn rotate(global: &GlobalArgs, detach: bool) -> Result<(), CommandError> {
    let what = "the keys of the cluster were not replaced";
    let client = connect(global, what).await?;
    let known = client.cluster().keys().await.map_err(|error| from_client(what, error))?;
    let mut status = match known.phase() {
        // It goes on by itself.
        v1::KeyPhase::Disks | v1::KeyPhase::Managers | v1::KeyPhase::Objects => known,
        v1::KeyPhase::Unspecified | v1::KeyPhase::Complete => {
            let begun = client.cluster().rotate_keys(known.number).await;
            begun.map_err(|error| from_client(what, error))?
        }
    };
    if detach {
        eprintln!("the keys of the cluster are being replaced; see `warren cluster key status`");
    } else {
        let texts = (
            "the keys of the cluster are not replaced yet",
            "the cluster continues; give the command again to wait, or see `warren cluster key status`",
        );
        let number = status.number;
        let progress_of = |seen: &v1::KeyStatus| ShownProgress {
            // Another replacement begins only after this one.
            is_complete: seen.number != number || seen.phase() == v1::KeyPhase::Complete,
            summary: progress_summary(seen),
            lines: progress_lines(seen),
        };
        let fetch = async || client.cluster().keys().await;
        status = wait_complete(texts, global.timeout, status, fetch, progress_of).await?;
    }
    output::print(&format!("{}\n", status.secret_object_key))
}
