//! `warren context ...`: the contexts file. Only an export asks a manager.

use std::path::Path;
use std::time::Duration;

use warren_client::contexts::TargetSelection;
use warren_client::{CertificateOptions, ClientTarget, Contexts};
use warren_security::FileError;
use warren_security::files::{ensure_private_dir, write_private};

use crate::args::{ContextCommand, GlobalArgs, ListingArgs};
use crate::connect::{connect, contexts_file};
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output::{self, Listing};
use crate::view::context::ContextView;
use crate::view::now;

pub async fn run(global: &GlobalArgs, command: ContextCommand) -> Result<(), CommandError> {
    match command {
        ContextCommand::Ls(listing) => ls(global, &listing),
        ContextCommand::Use { name } => {
            let what = format!("context {name:?} was not selected");
            Contexts::set_current(&contexts_file(&what)?, &name)
                .map_err(|error| from_client(&what, error))?;
            output::print(&format!("{name}\n"))
        }
        ContextCommand::Export { name, docker, ttl } => {
            let context = name.or_else(|| global.context.clone());
            export(&GlobalArgs { context, ..global.clone() }, &docker, ttl).await
        }
        ContextCommand::Rm { names } => names.iter().try_for_each(|name| {
            let what = format!("context {name:?} was not removed");
            Contexts::remove(&contexts_file(&what)?, name).map_err(|error| from_client(&what, error))?;
            output::print(&format!("{name}\n"))
        }),
    }
}

/// Writes the files that Docker's clients look for in `DOCKER_CERT_PATH`, with a certificate for them.
async fn export(global: &GlobalArgs, dir: &Path, ttl: Duration) -> Result<(), CommandError> {
    let what = "the certificates were not written";
    let contexts = Contexts::load(&contexts_file(what)?).map_err(|error| from_client(what, error))?;
    let selection = TargetSelection { context: global.context.clone(), ..TargetSelection::default() };
    let target = contexts.select(selection).map_err(|error| from_client(what, error))?;
    if !matches!(target, ClientTarget::Tcp { .. }) {
        let why = format!("the context uses {target}, and has no certificate");
        let hint = "create a user with `warren user create`, and log in with `warren login`";
        return Err(CommandError::new(ExitKind::Usage, what, why, hint));
    }
    let client = connect(global, what).await?;
    let options = CertificateOptions { ttl: Some(ttl), ..CertificateOptions::default() };
    let identity = client.issue_certificate(options).await.map_err(|error| from_client(what, error))?;
    let write = || {
        ensure_private_dir(dir)?;
        write_private(&dir.join("ca.pem"), identity.ca.as_bytes())?;
        write_private(&dir.join("cert.pem"), identity.certificate.as_bytes())?;
        write_private(&dir.join("key.pem"), identity.key.0.as_bytes())
    };
    write().map_err(|error: FileError| {
        CommandError::new(ExitKind::Failed, what, error.to_string(), "choose another directory with --docker")
    })?;
    let ttl = humantime::format_duration(ttl);
    eprintln!("the certificate is valid for at most {ttl}: clients of Docker do not renew it");
    output::print(&format!("{}\n", dir.display()))
}

fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "contexts were not listed";
    let list = Listing::new(global.output, listing, what)?;
    if list.is_watched() {
        let why = "contexts are in a file of this machine, whose changes are no events";
        return Err(CommandError::new(ExitKind::Usage, what, why, "leave out --watch"));
    }
    let contexts = Contexts::load(&contexts_file(what)?).map_err(|error| from_client(what, error))?;
    let current = global.context.as_ref().or(contexts.current.as_ref());
    let view = |context| ContextView::new(context, current.map(String::as_str));
    list.print(contexts.iter().map(view).collect::<Vec<_>>(), now())
}
