//! The admin context, so that the command line works at once.

use warren_client::{Context, Contexts, Identity, PrivateKey, Target};
use warren_process::{Exit, Failure, chain};

use super::Plan;
use crate::manager::Manager;

/// Writes what this machine's administrator shows into the contexts file; answers the context's name and the file.
///
/// # Errors
/// Nothing says where the file is, or it cannot be written.
pub fn write_context(plan: &Plan, manager: &Manager) -> Result<(String, String), Failure> {
    let what = "the context was not written";
    let hint = "set HOME, or name the file in WARREN_CONTEXTS";
    let none = || Failure::new(Exit::Failed, what, "nothing says where the contexts file is", hint);
    let file = Contexts::path(|name| std::env::var_os(name)).ok_or_else(none)?;
    let admin = manager.admin();
    let identity = Identity {
        ca: manager.roots().pem().to_owned(),
        certificate: admin.certificate_pem().to_owned(),
        key: PrivateKey(admin.key().pem().to_owned()),
    };
    let failed = |error: warren_client::Error| {
        Failure::new(
            Exit::Failed,
            what,
            chain(&error),
            "correct the file, or name another in WARREN_CONTEXTS",
        )
    };
    let address = plan.advertised(manager.address());
    let address = address.parse().map_err(|why| Failure::new(Exit::Usage, what, why, "see --advertise"))?;
    let known = Contexts::load(&file).map_err(failed)?;
    let name = context_name(&known, &identity, &manager.cluster().to_string());
    let context = Context { name: name.clone(), target: Target::Tcp { address, identity } };
    Contexts::ensure(&file, context).map_err(failed)?;
    Ok((name, file.display().to_string()))
}

/// `default`, unless that is another cluster's.
fn context_name(known: &Contexts, own: &Identity, cluster: &str) -> String {
    let short = || cluster.chars().take(8).collect();
    match known.get("default").map(|context| &context.target) {
        Some(Target::Tcp { identity, .. }) if identity.ca != own.ca => short(),
        Some(Target::Unix { .. }) => short(),
        _ => "default".to_owned(),
    }
}
