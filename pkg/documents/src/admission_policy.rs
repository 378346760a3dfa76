//! The document of the admission policy, a setting of the cluster: it has no name, and `warren apply` does not read it.

use serde_json::{Value, json};
use warren_compose::ComposeProblem;
use warren_compose::yaml::{WorkBudget, parse};
use warren_types::{AdmissionPolicy, Violations};

use crate::documents::{SourceText, checked, kind_text, spec, with_hint_about_tabs};
use crate::format::{ADMISSION_POLICY, API_VERSION};
use crate::locate::problem;

/// Reads a file with the document of an admission policy, and no other.
///
/// # Errors
/// What is wrong with it.
pub fn read_admission_policy(file: SourceText<'_>) -> Result<AdmissionPolicy, Vec<ComposeProblem>> {
    let SourceText { name, text } = file;
    let root = parse(name, text, &mut WorkBudget::default());
    let root = root.map_err(|problem| vec![with_hint_about_tabs(problem, text)])?;
    let kind = kind_text(&root).map_err(|problem| vec![problem])?;
    if kind != ADMISSION_POLICY {
        return Err(vec![problem(&root, "kind", format!("{kind:?} is not {ADMISSION_POLICY}"))]);
    }
    if root.get("metadata").is_some() {
        let message = "is not a field here: a cluster has one admission policy; leave it out";
        return Err(vec![problem(&root, "metadata", message)]);
    }
    let policy: AdmissionPolicy = spec(&root)?;
    let mut wrong = Violations::default();
    wrong.nest("spec", policy.validate());
    checked(&root, wrong)?;
    Ok(policy)
}

/// The document of a policy.
pub fn admission_policy_document(policy: &AdmissionPolicy) -> Value {
    json!({"apiVersion": API_VERSION, "kind": ADMISSION_POLICY, "spec": policy})
}
