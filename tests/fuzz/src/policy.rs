//! Arbitrary bytes as the document of an admission policy.

use warren_documents::{SourceText, admission_policy_document, read_admission_policy};
use warren_types::{AdmissionPolicy, ServiceSpec, TaskSpec, UserRole};

/// Bytes are refused, or are a valid policy that survives as a document and decides about every image.
pub fn run(bytes: &[u8]) {
    accepted(bytes);
}

/// What an input is, for the test of the corpus; `None` if it is refused.
pub fn accepted(bytes: &[u8]) -> Option<&'static str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let policy = match read_admission_policy(SourceText { name: "policy.yaml", text }) {
        Ok(policy) => policy,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            return None;
        }
    };
    assert_eq!(policy.validate().0, []);
    let mut document = admission_policy_document(&policy);
    let again: AdmissionPolicy = serde_json::from_value(document["spec"].take()).expect("it was written");
    assert_eq!(again, policy);
    for image in ["nginx:1", "registry.example.com:5000/shop/app:1"] {
        let image: warren_types::ImageReference = image.parse().expect("an image");
        let rules: Vec<usize> = policy.signature_rules(&image).map(|(number, _)| number).collect();
        assert!(rules.iter().all(|number| *number < policy.signatures.len()), "{rules:?}");
        let spec = ServiceSpec::new("web".parse().expect("a name"), TaskSpec::new(image));
        // It has no power over nodes.
        assert_eq!(policy.privilege_violations(UserRole::Operator, &spec).0, []);
        assert_eq!(policy.violations(UserRole::Admin, &spec).0, []);
    }
    Some(match (policy.signatures.is_empty(), policy.weaker_rules().is_empty()) {
        (false, _) => "signatures",
        (true, false) => "weaker rules",
        (true, true) => "rules",
    })
}
