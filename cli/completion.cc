#include "cli/command.h"

namespace paceline {
namespace {

constexpr std::string_view kBash =
    R"sh(# bash completion for pacelinectl: eval "$(pacelinectl completion bash)"
_pacelinectl() {
  local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} == -- ]]; then
      COMPREPLY=($(compgen -c -f -- "$current"))
      return
    fi
  done
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "run status jobs nodes groups staleness events stop remove move drain checkpoint
       completion
      --help --version" -- "$current"))
    return
  fi
  local shared="--scheduler --timeout-ms --insecure --tls-cert --tls-key --tls-ca --help"
  case $command in
    run)
      if [[ ${COMP_WORDS[COMP_CWORD - 1]} =~ ^--(config|output|resume)$ ]]; then
        COMPREPLY=($(compgen -f -- "$current"))
        return
      fi
      COMPREPLY=($(compgen -W "--workers --servers --groups --job --output --resume --restarts --add --config --set
        --print-config --epochs --batch-size --sample-count --policy --optimizer --deterministic
        --seed --scheduler --insecure --tls-cert --tls-key --tls-ca --help --" -- "$current")) ;;
    status | jobs | nodes | groups | staleness)
      COMPREPLY=($(compgen -W "--json --watch $shared" -- "$current")) ;;
    events)
      COMPREPLY=($(compgen -W "--json --watch --after --limit $shared" -- "$current")) ;;
    stop | remove)
      COMPREPLY=($(compgen -W "--reason $shared" -- "$current")) ;;
    move)
      COMPREPLY=($(compgen -W "--group --reason $shared" -- "$current")) ;;
    drain)
      COMPREPLY=($(compgen -W "--undo --wait $shared" -- "$current")) ;;
    checkpoint)
      COMPREPLY=($(compgen -W "list verify show --json --directory $shared" -- "$current")
        $(compgen -f -- "$current")) ;;
    completion)
      COMPREPLY=($(compgen -W "bash zsh" -- "$current")) ;;
  esac
}
complete -o default -F _pacelinectl pacelinectl
)sh";

constexpr std::string_view kZsh = R"sh(#compdef pacelinectl
# zsh completion for pacelinectl: pacelinectl completion zsh > "${fpath[1]}/_pacelinectl"
autoload -U +X bashcompinit && bashcompinit
)sh";

}  // namespace

std::string CompletionScript(std::string_view shell) {
  if (shell == "bash") return std::string(kBash);
  // zsh runs bash completions through bashcompinit: one list of words to keep.
  if (shell == "zsh") return std::string(kZsh) + std::string(kBash);
  return "";
}

}  // namespace paceline
