use warren_types::{TaskAssignment, VolumeAssignment};
use warren_volume::VolumeBackend;

use super::*;

fn purge() -> Purpose {
    Purpose::PurgeVolume(v1::PurgeVolume { name: "data".into() })
}

#[tokio::test(start_paused = true)]
async fn volumes_are_listed_and_deleted_over_streams() {
    let mut desired_state = desired(&[1, 2]);
    let used = VolumeAssignment { name: "data".parse().unwrap(), options: Default::default() };
    desired_state
        .tasks
        .insert(task_id(1), Arc::new(TaskAssignment { volumes: vec![used.clone()], ..task(1) }));
    let (node, mut manager) = TestNode::start(desired_state);
    let mut session = manager.next_welcomed_session().await;
    for name in ["data", "other"] {
        node.volumes.ensure(&name.parse().unwrap(), &Default::default(), None).await.unwrap();
    }
    let list = Purpose::ListVolumes(v1::ListVolumes { names: Vec::new() });
    let mut stream = attached(&mut manager, &session, list).await;
    let output = all_frames(&mut stream, &mut session).await;
    let name = |frame: &Frame| match frame {
        Frame::Volumes(list) => list.volumes[0].name.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (name(&output[0]), name(&output[1]), &output[2..]),
        ("data".into(), "other".into(), &[DONE][..])
    );

    let mut stream = attached(&mut manager, &session, purge()).await;
    let text = all_frames(&mut stream, &mut session).await;
    assert!(matches!(&text[..], [Frame::Error(why)] if why.contains("in use on this node")), "{text:?}");
    assert!(node.volumes.path(&used.name).exists());
    node.context.desired_state.send_modify(|desired_state| drop(desired_state.tasks.remove(&task_id(1))));
    for _twice in 0..2 {
        let mut stream = attached(&mut manager, &session, purge()).await;
        assert_eq!(all_frames(&mut stream, &mut session).await, [DONE]);
        assert!(!node.volumes.path(&used.name).exists());
    }
}
