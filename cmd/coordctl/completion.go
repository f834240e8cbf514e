package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/suggest"
	"coordinator/handshake"
)

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes coordctl's command lines",
		Long: `Print a script that completes coordctl's command lines: commands, flags and their values, and from the
coordinator that is meant the ids of records, with their titles and states. A coordinator that does
not answer soon completes nothing.`,
		Example: `  source <(coordctl completion bash)
  coordctl completion bash > ~/.local/share/bash-completion/completions/coordctl
  coordctl completion zsh > "${fpath[1]}/_coordctl"
  coordctl completion fish > ~/.config/fish/completions/coordctl.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      exactArgs("SHELL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return usage("there is no completion for %q; it is bash, zsh or fish%s", args[0], suggest.Hint(args[0], cmd.ValidArgs))
		},
	}
}

// completeKinds completes the first argument of commands that take a kind.
func completeKinds(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, k := range kindNames {
		out = append(out, k.names[0])
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// key is the key that --key names; nil leaves it to the context.
func (a *app) key() (handshake.Signer, error) {
	if a.keySource == "" {
		return nil, nil
	}
	key, err := client.OpenKey(a.keySource)
	if err != nil {
		if hint := suggest.Hint(a.keySource, []string{"agent"}); hint != "" && errors.Is(err, fs.ErrNotExist) {
			return nil, usage("--key: %v%s", err, hint)
		}
		return nil, fmt.Errorf("--key: %w", err)
	}
	return key, nil
}

// enrolLine says how a key that is not accepted can be.
func (a *app) enrolLine() string {
	if a.keySource == "" {
		return "enrol the key that `key_file` in " + a.contextPath + " names (coordinatord keys --state DIR add ed25519:…), or name the key that is enrolled"
	}
	text := "ed25519:…"
	if !strings.HasPrefix(a.keySource, "fd:") { // which gives a key once
		if key, err := a.key(); err == nil {
			text = handshake.FormatPublicKey(key.Public())
		}
	}
	return "enrol the key that --key names (coordinatord keys --state DIR add " + text + "), or name the key that is enrolled"
}
