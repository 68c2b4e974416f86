//! The page after the end of a session.

use super::*;
use vpnd_ipc::gateway::portal::devices::{OwnDevice, OwnWireGuard};

/// The device with this number, a WireGuard device or not.
fn device(number: u8, is_wireguard: bool) -> OwnDevice {
    let wireguard = || OwnWireGuard {
        name: Text::cut("phone"),
        key: Text::cut("abcdefgh"),
        renewed_age_s: 0,
        left_s: None,
        public_key: Text::cut("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG="),
        renewed_s: 0,
        walled_s: None,
        outer: None,
        state: Text::cut(""),
        in_two_places: false,
    };
    OwnDevice {
        device: [number; 16].into(),
        addresses: List::default(),
        session_age_s: Some(1),
        from: None,
        wireguard: is_wireguard.then(wireguard),
        added_age_s: None,
        unseen_s: None,
        network: None,
    }
}

async fn answer_with_devices(channel: Channel) {
    while let Ok(Some(received)) = channel.receive::<Numbered<PortalRequest>>().await {
        let Numbered { number, content } = received.alone().unwrap();
        let content = match content {
            PortalRequest::Devices(_) => {
                let devices = List::new(vec![device(1, false), device(2, true)]).unwrap();
                encoded(&Ok(Some(OwnDevices { devices, wireguard: true, profile: true })))
            }
            PortalRequest::EndSession(_) => encoded(&Ok(Change::Done)),
            _ => encoded::<()>(&Err(Reason::cut("a test"))),
        };
        channel.send(&Numbered { number, content }, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn the_page_says_when_this_kind_of_device_notices() {
    let (ours, theirs) = channel::pair().unwrap();
    let (auth, replies) = AuthClient::start(Channel::new(ours, MAX_FRAME).unwrap());
    tokio::spawn(replies);
    tokio::spawn(answer_with_devices(Channel::new(theirs, MAX_FRAME).unwrap()));
    let mut site = router(Arc::new(Site::new(auth, "VPN".to_owned(), None, Vec::new())));
    for (path, number, place) in [
        ("/sessions/end", 1, "/?ended"),
        ("/sessions/end", 2, "/?ended-wireguard"),
        ("/devices/end", 1, "/devices?ended"),
        ("/devices/end", 2, "/devices?ended-wireguard"),
    ] {
        let mut end = request(Method::POST, path, true);
        let (form, device) = (form_of(&Token(TOKEN.into())), hex(&[number; 16]));
        *end.body_mut() = Body::from(format!("form={form}&device={device}"));
        let response = site.call(end).await.unwrap();
        assert_eq!(only(&response, &LOCATION, path), place);
    }
    let texts = &crate::texts::ENGLISH;
    for (query, said) in [("ended", texts.session_ended), ("ended-wireguard", texts.devices.session_ended)] {
        let shown = site.call(request(Method::GET, &format!("/devices?{query}"), true)).await.unwrap();
        let page = to_bytes(shown.into_body(), 1 << 20).await.unwrap();
        assert!(String::from_utf8_lossy(&page).contains(said), "{query}");
    }
}
