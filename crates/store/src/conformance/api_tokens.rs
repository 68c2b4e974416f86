//! Behaviour of [`crate::ApiTokens`].

use super::Stand;
use crate::ApiToken;
use vpnd_config::desk::DeskRole;

pub(crate) fn a_token_of_the_api_comes_back_whole_and_goes(stand: &dyn Stand) {
    let store = stand.open();
    let (token, _) = ApiToken::new("idm", DeskRole::Administrator, 10, 1_000);
    assert!(store.add_api_token(&token).unwrap());
    let (other, _) = ApiToken::new("idm", DeskRole::Viewer, 10, 1_000);
    assert!(!store.add_api_token(&other).unwrap(), "the name is taken");
    drop(store);
    let store = stand.open();
    assert_eq!(store.api_tokens().unwrap(), [token]);
    assert!(store.remove_api_token("idm").unwrap() && !store.remove_api_token("idm").unwrap());
    assert!(store.api_tokens().unwrap().is_empty());
}
