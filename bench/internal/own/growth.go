package own

import (
	"context"
	"fmt"

	"coordinator/bench/internal/measure"
)

// growthSteps are the amounts of state, as multiples of that of a restart.
var growthSteps = []float64{0.01, 0.1, 1, 10}

// growthFan is how many subscribers the fan-out has.
const growthFan = 500

// Growth are parts that measure commands, fan-out, snapshot and restart at growing amounts
// of state. share cuts the amounts: with 0.1 the largest is one tenth.
func Growth(share float64) (parts []measure.Part) {
	for _, step := range growthSteps {
		at := step * share
		parts = append(parts, measure.Part{Name: fmt.Sprintf("growth/%g", at), Run: func(ctx context.Context, e *measure.Env) error {
			return growth(ctx, e, at)
		}})
	}
	return parts
}

func growth(ctx context.Context, e *measure.Env, at float64) error {
	quotas := fanQuotas(growthFan)
	r, err := startShort(ctx, e, quotas)
	if err != nil {
		return err
	}
	defer r.stop()
	operations, live := int(restartOperations*at), max(int(restartLive*at), 100)
	if err := r.fill(ctx, operations, live); err != nil {
		return err
	}
	figures := measure.NewRecorder("")
	measured := *e
	measured.Rec = figures
	if err := r.commands(ctx, &measured, r.unix, "growth.command", 64, 5); err != nil {
		return err
	}
	if err := r.fan(ctx, &measured, overUnix, "growth.fan", growthFan, quotas, measured.FanBusy); err != nil {
		return err
	}
	for range 3 {
		if err := r.snapshot(ctx, &measured, r.unix, "growth.snapshot", live); err != nil {
			return err
		}
	}
	if err := r.restarts(ctx, &measured, "growth.restart", 3); err != nil {
		return err
	}
	for _, row := range figures.Rows() {
		for _, v := range row.Values {
			e.Rec.Add(fmt.Sprintf("%s@%g", row.Name, at), row.Unit, v)
		}
	}
	return nil
}
