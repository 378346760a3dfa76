//! `warren cluster ca`: shows the certificate authority, and replaces it. The managers do that by themselves: the
//! command begins it and watches.

use warren_proto::v1;

use super::rotation::{ShownProgress, wait_complete};
use crate::args::{CaSubcommand, GlobalArgs};
use crate::connect::connect;
use crate::failure::{CommandError, from_client};
use crate::output;
use crate::view::ca::{CaStatusView, progress_lines, progress_summary};
use crate::view::joined_names;

pub async fn run(global: &GlobalArgs, command: CaSubcommand) -> Result<(), CommandError> {
    match command {
        CaSubcommand::Status => status(global).await,
        CaSubcommand::Rotate { detach } => rotate(global, detach).await,
    }
}

async fn status(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "the certificate authority was not shown";
    let client = connect(global, what).await?;
    let status = client.cluster().ca().await.map_err(|error| from_client(what, error))?;
    output::print_document(global.output, &CaStatusView::new(status))
}

async fn rotate(global: &GlobalArgs, detach: bool) -> Result<(), CommandError> {
    let what = "the certificate authority was not replaced";
    let client = connect(global, what).await?;
    let known = client.cluster().ca().await.map_err(|error| from_client(what, error))?;
    let begun = match known.phase() {
        // It goes on by itself.
        v1::CaPhase::Managers | v1::CaPhase::Nodes => known,
        v1::CaPhase::Unspecified | v1::CaPhase::Complete => {
            let begun = client.cluster().rotate_ca(&known.ca_digest).await;
            begun.map_err(|error| from_client(what, error))?
        }
    };
    if detach {
        eprintln!("the certificate authority is being replaced; see `warren cluster ca status`");
    } else {
        let texts = (
            "the certificate authority is not replaced yet",
            "the cluster continues; give the command again to wait, or see `warren cluster ca status`",
        );
        let digest = begun.ca_digest.clone();
        let progress_of = |seen: &v1::CaStatus| ShownProgress {
            // Another replacement begins only after this one.
            is_complete: seen.ca_digest != digest || seen.phase() == v1::CaPhase::Complete,
            summary: progress_summary(seen),
            lines: progress_lines(seen),
        };
        let fetch = async || client.cluster().ca().await;
        let complete = wait_complete(texts, global.timeout, begun.clone(), fetch, progress_of).await?;
        print_remaining(&complete);
    }
    output::print(&format!("{}\n", begun.ca_digest))
}

/// Who trusts the earlier authority for now.
fn print_remaining(status: &v1::CaStatus) {
    let names = |progress: &Option<v1::CaProgress>| {
        let names = progress.as_ref().map(|progress| progress.missing_names.clone()).unwrap_or_default();
        (!names.is_empty()).then(|| joined_names(&names, false))
    };
    if let Some(nodes) = names(&status.nodes) {
        eprintln!("not ready: {nodes}; they follow when they return");
    }
    if let Some(users) = names(&status.users) {
        eprintln!("users that have not renewed: {users}; each does so with the next command");
    }
}
