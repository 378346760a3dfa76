//! `warren cluster policy`: the admission policy.

use warren_documents::admission_policy_document;
use warren_types::{AdmissionPolicy, ClusterSettingsChange};

use crate::args::{GlobalArgs, PolicyCommand};
use crate::command::documents::read_admission_policy;
use crate::connect::connect;
use crate::failure::{CommandError, from_client};
use crate::output;
use crate::view::cluster::admission_policy;

pub async fn run(global: &GlobalArgs, command: PolicyCommand) -> Result<(), CommandError> {
    let what = "the admission policy was not set";
    match command {
        PolicyCommand::Show => show(global).await,
        PolicyCommand::Set { file } => set(global, read_admission_policy(&file, what)?, what).await,
        PolicyCommand::Reset => set(global, AdmissionPolicy::default(), what).await,
    }
}

async fn show(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "the admission policy was not shown";
    let client = connect(global, what).await?;
    let info = client.cluster().info().await.map_err(|error| from_client(what, error))?;
    output::print_document(global.output, &admission_policy_document(&admission_policy(&info)?))
}

async fn set(global: &GlobalArgs, policy: AdmissionPolicy, what: &str) -> Result<(), CommandError> {
    let client = connect(global, what).await?;
    let change = ClusterSettingsChange { admission_policy: Some(policy), ..ClusterSettingsChange::default() };
    client.cluster().update(&change, None, None).await.map_err(|error| from_client(what, error))?;
    eprintln!("admission policy set");
    Ok(())
}
